"""The element-wise steps behind a layer's main operator, for families that have no fused form.

The main operator's result is fresh memory, so unary steps overwrite it, and so do sums and
products with an operand of its shape. Other binary steps may broadcast it to a larger shape and
therefore make a new tensor.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from brisk.graph.program import Attribute, Epilogue
from brisk.solutions.base import APPLIES, Applicability, Problem, refused
from brisk.solutions.values import TORCH_DTYPES, from_numpy

Finish: TypeAlias = Callable[[torch.Tensor, "Sequence[torch.Tensor]"], torch.Tensor]
"""Applies steps: takes the fresh result and the dynamic epilogue operands, in order."""

_Unary: TypeAlias = Callable[[torch.Tensor], torch.Tensor]

_nn: Any = torch._C._nn

_PLAIN: Mapping[str, _Unary] = {
    "Relu": torch.relu_,
    "Sigmoid": torch.sigmoid_,
    "Tanh": torch.tanh_,
    "HardSwish": _nn.hardswish_,
    "Silu": _nn.silu_,
    "Mish": _nn.mish_,
    "Abs": torch.abs_,
    "Neg": torch.neg_,
    "Exp": torch.exp_,
    "Sqrt": torch.sqrt_,
    "Erf": torch.erf_,
    "Identity": lambda result: result,
}

_BINARY: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "Add": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "Div": torch.div,
}

_COMMUTATIVE: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "Add": lambda result, operand: result.add_(operand),
    "Mul": lambda result, operand: result.mul_(operand),
}

ONE_SIXTH = 1.0 / 6.0


def number(attributes: Mapping[str, Attribute], name: str, default: float) -> float:
    """A numeric attribute as a float; ``default`` where it is absent."""
    value = attributes.get(name, default)
    return float(value)  # type: ignore[arg-type]  # the operator's schema makes it a number


def unary_step(step: Epilogue) -> _Unary | None:
    """The step as a function that overwrites its argument; None where it is not known."""
    attributes = step.attributes
    if step.operand is not None:
        return None
    if step.operator in _PLAIN:
        return _PLAIN[step.operator]
    if step.operator == "Clip":
        low, high = clip_bounds(step)
        return functools.partial(torch.clamp_, min=low, max=high)
    if step.operator == "Swish" and number(attributes, "alpha", 1.0) == 1.0:
        return _PLAIN["Silu"]
    if step.operator == "HardSigmoid":
        alpha, beta = number(attributes, "alpha", 0.2), number(attributes, "beta", 0.5)
        return lambda result: result.mul_(alpha).add_(beta).clamp_(0.0, 1.0)
    if step.operator == "LeakyRelu":
        slope = number(attributes, "alpha", 0.01)
        return lambda result: _nn.leaky_relu_(result, slope)
    if step.operator == "Elu":
        alpha = number(attributes, "alpha", 1.0)
        return lambda result: _nn.elu_(result, alpha)
    if step.operator == "Selu":
        alpha = number(attributes, "alpha", 1.67326319217681884765625)
        gamma = number(attributes, "gamma", 1.05070102214813232421875)
        return lambda result: _nn.elu_(result, alpha, gamma)
    if step.operator == "Gelu":
        approximation = gelu_approximation(step)
        return lambda result: _nn.gelu_(result, approximate=approximation)
    return None


def gelu_approximation(step: Epilogue) -> str:
    return str(step.attributes.get("approximate", "none"))


def clip_bounds(step: Epilogue) -> tuple[float, float]:
    """``min`` and ``max`` of a Clip step; infinite where absent."""
    infinity = float("inf")
    low = number(step.attributes, "min", -infinity)
    return low, number(step.attributes, "max", infinity)


def check_epilogue(problem: Problem) -> Applicability:
    """Whether every step is known and every operand has the result's dtype."""
    if len(problem.layer.outputs) != 1:
        return refused(f"{len(problem.layer.outputs)} outputs, a fused layer has one")
    dtype = problem.outputs[0].dtype
    if problem.epilogue and dtype not in ("float32", "float64", "float16", "bfloat16"):
        return refused(f"fused steps on {dtype} results")
    for step in problem.epilogue:
        known = step.operator in _BINARY if step.operand is not None else unary_step(step)
        if not known:
            return refused(f"fused step {step.operator} is not known")
    for operand in problem.epilogue_operands:
        if operand.type.dtype != dtype:
            return refused(f"fused operand {operand.name} is {operand.type.dtype}, not {dtype}")
    return APPLIES


def finish_epilogue(problem: Problem, skip: int = 0) -> Finish | None:
    """The steps from number ``skip`` on as one function; None where there are none.

    Precondition: ``check_epilogue`` accepted. The function's second argument holds only the
    dynamic operands of those steps.
    """
    operands = iter(problem.epilogue_operands)
    functions: list[Callable[[torch.Tensor, Sequence[torch.Tensor]], torch.Tensor]] = []
    position = 0
    for index, step in enumerate(problem.epilogue):
        operand = next(operands) if step.operand is not None else None
        if index < skip:
            continue
        if operand is None:
            function = unary_step(step)
            assert function is not None, f"unchecked step {step.operator}"
            functions.append(_ignoring_operands(function))
        elif operand.constant is not None:
            constant = from_numpy(operand.constant, problem.device)
            assert isinstance(constant, torch.Tensor)
            functions.append(_with_constant(step, constant))
        else:
            functions.append(_with_operand(step, position))
            position += 1
    if not functions:
        return None
    return functions[0] if len(functions) == 1 else _chained(functions)


def constant_tensor(problem: Problem, position: int | None) -> torch.Tensor | None:
    """The constant at a position of the main operator, or of the first epilogue operand.

    None where it is left out or not constant.
    """
    operand = problem.epilogue_operands[0] if position is None else problem.operand(position)
    if operand is None or operand.constant is None:
        return None
    tensor = from_numpy(operand.constant, problem.device)
    assert isinstance(tensor, torch.Tensor)
    return tensor


def torch_dtype(name: str | None) -> torch.dtype | None:
    return None if name is None else TORCH_DTYPES.get(name)


def _ignoring_operands(function: _Unary) -> Finish:
    return lambda result, operands: function(result)


def _with_constant(step: Epilogue, constant: torch.Tensor) -> Finish:
    function = _BINARY[step.operator]
    if step.operand_first:
        return lambda result, operands: function(constant, result)
    return lambda result, operands: function(result, constant)


def _with_operand(step: Epilogue, position: int) -> Finish:
    function = _BINARY[step.operator]
    if step.operator in _COMMUTATIVE:
        return _overwriting(_COMMUTATIVE[step.operator], function, position)
    if step.operand_first:
        return lambda result, operands: function(operands[position], result)
    return lambda result, operands: function(result, operands[position])


def _overwriting(
    overwrite: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    position: int,
) -> Finish:
    """A step that saves memory traffic where its operand is as large as the result."""

    def finish(result: torch.Tensor, operands: Sequence[torch.Tensor]) -> torch.Tensor:
        operand = operands[position]
        if operand.shape == result.shape:
            return overwrite(result, operand)
        return function(result, operand)

    return finish


def _chained(functions: Sequence[Finish]) -> Finish:
    def finish(result: torch.Tensor, operands: Sequence[torch.Tensor]) -> torch.Tensor:
        for function in functions:
            result = function(result, operands)
        return result

    return finish
