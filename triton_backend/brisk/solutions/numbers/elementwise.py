"""Element-wise arithmetic, comparison, logic, changes of dtype, and activations.

Functions take ONNX's attributes under their names.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from brisk.graph.files.element_types import name_of_element
from brisk.solutions.base import Kernel, Problem
from brisk.solutions.rules import (
    BOOLEAN,
    FLOATS,
    INTEGERS,
    MOVED,
    NUMBERS,
    SIGNED,
    Check,
    Load,
    Rule,
    anything,
    bind,
    calls,
    several,
    single,
    takes,
)
from brisk.solutions.values import TORCH_DTYPES


def _load_divide(problem: Problem) -> Kernel:
    """Integers truncate towards zero, as the operator is defined since version 14."""
    if problem.dtype() in INTEGERS:
        return bind(problem, functools.partial(torch.div, rounding_mode="trunc"))
    return bind(problem, torch.div)


def _modulo(x: Tensor, y: Tensor, fmod: int) -> Tensor:
    return torch.fmod(x, y) if fmod else torch.remainder(x, y)


def _load_power(problem: Problem) -> Kernel:
    """The result has the base's dtype, whatever the exponent's."""
    exponent = problem.operands[1]
    assert exponent is not None
    fixed = exponent.constant
    is_number = fixed is not None and fixed.size == 1 and fixed.ndim <= (problem.rank() or 0)
    if is_number and problem.dtype() in FLOATS:
        # for whole and half exponents torch multiplies or takes roots
        return bind(problem, lambda x, number: torch.pow(x, single(number)), numbers={1})
    if problem.dtype() == exponent.type.dtype:
        return bind(problem, torch.pow)
    return bind(problem, lambda x, y: torch.pow(x, y).to(x.dtype))


def _check_power(problem: Problem) -> str | None:
    reason = takes(FLOATS | {"int32", "int64"}, NUMBERS)(problem)
    if reason or problem.dtype() in FLOATS or problem.dtype(1) in INTEGERS:
        return reason
    return "an integer to the power of a float"  # numpy's and torch's rounding differ


def _shift(x: Tensor, bits: Tensor, direction: str) -> Tensor:
    return (torch.bitwise_left_shift if direction == "LEFT" else torch.bitwise_right_shift)(
        x, bits
    )


def _is_infinite(x: Tensor, detect_negative: int, detect_positive: int) -> Tensor:
    if detect_negative and detect_positive:
        return torch.isinf(x)
    if not detect_negative and not detect_positive:
        return torch.zeros_like(x, dtype=torch.bool)
    return torch.isposinf(x) if detect_positive else torch.isneginf(x)


def _load_clip(problem: Problem) -> Kernel:
    given = [operand for operand in problem.operands[1:] if operand is not None]
    if not given:
        return bind(problem, lambda x, *_: x)
    fixed = all(operand.constant is not None and operand.constant.ndim == 0 for operand in given)
    return bind(problem, torch.clamp, numbers={1, 2} if fixed else ())


def _reduced(function: Callable[..., Tensor], check: Check) -> Rule:
    """Over any number of operands."""
    return Rule(calls(lambda *values: functools.reduce(function, values)), check)


def _mean(*values: Tensor) -> Tensor:
    return functools.reduce(torch.add, values) / len(values)


def _sign(x: Tensor) -> Tensor:
    """NaN stays NaN, which ``torch.sign`` alone makes 0."""
    return torch.sign(x) if not x.is_floating_point() else torch.where(x.isnan(), x, x.sign())


def _load_cast(problem: Problem) -> Kernel:
    dtype = TORCH_DTYPES[name_of_element(problem.attribute("to", 0)) or ""]
    return bind(problem, lambda x: x.to(dtype))


def _check_cast(problem: Problem) -> str | None:
    """torch converts between what it moves as ONNX does."""
    number = problem.attribute("to", 0)
    if name_of_element(number) not in MOVED:
        return f"element type {number} is converted by the reference only"
    return takes(MOVED)(problem)


def _load_dropout(problem: Problem) -> Kernel:
    if len(problem.node.outputs) == 1:
        return bind(problem, lambda x, *_: x)
    return several(calls(lambda x, *_: (x, torch.ones_like(x, dtype=torch.bool))))(problem)


def _check_dropout(problem: Problem) -> str | None:
    if problem.operand(2) is not None and problem.constant(2) is not False:
        return "may run in training mode"
    return takes(FLOATS, FLOATS, BOOLEAN)(problem)


def _by_name(check: Check, *operators: str, prefix: str = "") -> dict[str, Rule]:
    """Operators that torch has under ONNX's name."""
    return {name: Rule(calls(getattr(torch, prefix + name.lower())), check) for name in operators}


ELEMENTWISE: dict[str, Rule] = {
    **_by_name(
        takes(FLOATS),
        *("Sqrt", "Exp", "Log", "Erf", "Ceil", "Floor", "Round", "Reciprocal", "IsNaN"),
        *("Sin", "Cos", "Tan", "Asin", "Acos", "Atan"),
        *("Sinh", "Cosh", "Tanh", "Asinh", "Acosh", "Atanh"),
    ),
    **_by_name(takes(BOOLEAN), "And", "Or", "Xor", "Not", prefix="logical_"),
    **_by_name(takes(NUMBERS), "Add", "Sub", "Mul", "Greater", "Less", "Abs"),
    "BitwiseAnd": Rule(calls(torch.bitwise_and), takes(INTEGERS)),
    "BitwiseOr": Rule(calls(torch.bitwise_or), takes(INTEGERS)),
    "BitwiseXor": Rule(calls(torch.bitwise_xor), takes(INTEGERS)),
    "BitwiseNot": Rule(calls(torch.bitwise_not), takes(INTEGERS)),
    "GreaterOrEqual": Rule(calls(torch.ge), takes(NUMBERS)),
    "LessOrEqual": Rule(calls(torch.le), takes(NUMBERS)),
    "Neg": Rule(calls(torch.neg), takes(FLOATS | SIGNED)),
    "Sign": Rule(calls(_sign), takes(NUMBERS)),
    "Equal": Rule(calls(torch.eq), takes(MOVED)),
    "Div": Rule(_load_divide, takes(NUMBERS)),
    "Mod": Rule(calls(_modulo, fmod=0), takes(NUMBERS)),
    "Pow": Rule(_load_power, _check_power),
    "BitShift": Rule(calls(_shift, direction="LEFT"), takes({"uint8"})),
    "IsInf": Rule(calls(_is_infinite, detect_negative=1, detect_positive=1), takes(FLOATS)),
    "Clip": Rule(_load_clip, takes(NUMBERS)),
    "Max": _reduced(torch.maximum, takes(NUMBERS)),
    "Min": _reduced(torch.minimum, takes(NUMBERS)),
    "Sum": _reduced(torch.add, takes(FLOATS)),
    "Mean": Rule(calls(_mean), takes(FLOATS)),
    "Where": Rule(calls(torch.where), takes(BOOLEAN, MOVED)),
    "Cast": Rule(_load_cast, _check_cast),
    "CastLike": Rule(calls(lambda x, like: x.to(like.dtype)), takes(MOVED)),
    "Identity": Rule(calls(lambda x: x), anything),
    "Dropout": Rule(_load_dropout, _check_dropout),
}


# Activations.


def _swish(x: Tensor, alpha: float) -> Tensor:
    return functional.silu(x) if alpha == 1.0 else x * torch.sigmoid(alpha * x)


def _shrink(x: Tensor, bias: float, lambd: float) -> Tensor:
    """y = x + bias below -lambd, x - bias above it, 0 between."""
    outside = torch.where(x < -lambd, x + bias, x - bias)
    return torch.where(x.abs() > lambd, outside, torch.zeros_like(x))


def _hardmax(x: Tensor, axis: int) -> Tensor:
    """1 at the first maximum along ``axis``, else 0."""
    return torch.zeros_like(x).scatter_(axis, x.argmax(axis, keepdim=True), 1)


def _parametric_relu(x: Tensor, slope: Tensor) -> Tensor:
    return torch.where(x < 0, x * slope, x)


def _along(function: Callable[[Tensor, int], Tensor]) -> Load:
    return calls(lambda x, axis: function(x, axis), axis=-1)


_LOADERS: dict[str, Load] = {
    "LeakyRelu": calls(lambda x, alpha: functional.leaky_relu(x, alpha), alpha=0.01),
    "PRelu": calls(_parametric_relu),
    "Elu": calls(functional.elu, alpha=1.0),
    "Selu": calls(
        lambda x, alpha, gamma: torch.ops.aten.elu(x, alpha, gamma),
        alpha=1.6732632423543772,
        gamma=1.0507009873554805,
    ),
    "Celu": calls(functional.celu, alpha=1.0),
    "Gelu": calls(functional.gelu, approximate="none"),
    "Sigmoid": calls(torch.sigmoid),
    "Softplus": calls(functional.softplus),
    "Softsign": calls(functional.softsign),
    "HardSigmoid": calls(
        lambda x, alpha, beta: torch.clamp(x * alpha + beta, 0.0, 1.0), alpha=0.2, beta=0.5
    ),
    "HardSwish": calls(functional.hardswish),
    "Mish": calls(functional.mish),
    "Swish": calls(_swish, alpha=1.0),
    "SwiGLU": calls(lambda gate, value, alpha: _swish(gate, alpha) * value, alpha=1.0),
    "ThresholdedRelu": calls(lambda x, alpha: functional.threshold(x, alpha, 0.0), alpha=1.0),
    "Shrink": calls(_shrink, bias=0.0, lambd=0.5),
    "Softmax": _along(torch.softmax),
    "LogSoftmax": _along(torch.log_softmax),
    "Hardmax": _along(_hardmax),
}

ACTIVATION: dict[str, Rule] = {
    "Relu": Rule(calls(torch.relu), takes(NUMBERS)),
    **{operator: Rule(load, takes(FLOATS)) for operator, load in _LOADERS.items()},
}
