"""Activations on torch; the numbers behind each are bound when the layer loads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch.nn import functional

from brisk.solutions.base import Kernel, Problem, Solution
from brisk.solutions.rules import FLOATS, NUMBERS, Rule, RuleFamily, attribute, bind, rank, takes


def _with(function: Callable[..., torch.Tensor], **defaults: float) -> Callable[[Problem], Kernel]:
    """A loader that passes the attributes in ``defaults`` behind the tensor, in order."""

    def load(problem: Problem) -> Kernel:
        numbers = tuple(attribute(problem, name, value) for name, value in defaults.items())
        if not numbers:
            return bind(problem, function)
        if len(numbers) == 1:
            number = numbers[0]
            return bind(problem, lambda x: function(x, number))
        return bind(problem, lambda x: function(x, *numbers))

    return load


def _selu(x: torch.Tensor, alpha: float, gamma: float) -> torch.Tensor:
    return torch.ops.aten.elu(x, alpha, gamma)


def _celu(x: torch.Tensor, alpha: float) -> torch.Tensor:
    return torch.ops.aten.elu(x, alpha, 1.0, 1.0 / alpha)


def _softplus(x: torch.Tensor) -> torch.Tensor:
    return functional.softplus(x)


def _swish(x: torch.Tensor, alpha: float) -> torch.Tensor:
    return functional.silu(x) if alpha == 1.0 else x * torch.sigmoid(alpha * x)


def _load_gated_swish(problem: Problem) -> Kernel:
    alpha = attribute(problem, "alpha", 1.0)
    return bind(problem, lambda gate, value: _swish(gate, alpha) * value)


def _hard_sigmoid(x: torch.Tensor, alpha: float, beta: float) -> torch.Tensor:
    return torch.clamp(x * alpha + beta, 0.0, 1.0)


def _load_hard_sigmoid(problem: Problem) -> Kernel:
    alpha, beta = attribute(problem, "alpha", 0.2), attribute(problem, "beta", 0.5)
    if math.isclose(alpha, 1 / 6, rel_tol=1e-6) and beta == 0.5:
        return bind(problem, functional.hardsigmoid)
    return bind(problem, lambda x: _hard_sigmoid(x, alpha, beta))


def _thresholded_relu(x: torch.Tensor, alpha: float) -> torch.Tensor:
    return functional.threshold(x, alpha, 0.0)


def _shrink(x: torch.Tensor, bias: float, threshold: float) -> torch.Tensor:
    """y = x + bias below -threshold, x - bias above it, 0 between."""
    outside = torch.where(x < -threshold, x + bias, x - bias)
    return torch.where(x.abs() > threshold, outside, torch.zeros_like(x))


def _load_gelu(problem: Problem) -> Kernel:
    approximate = attribute(problem, "approximate", "none")
    return bind(problem, lambda x: functional.gelu(x, approximate=approximate))


def _along_axis(
    function: Callable[[torch.Tensor, int], torch.Tensor],
) -> Callable[[Problem], Kernel]:
    def load(problem: Problem) -> Kernel:
        axis = attribute(problem, "axis", -1)
        return bind(problem, lambda x: function(x, axis))

    return load


def _hardmax(x: torch.Tensor, axis: int) -> torch.Tensor:
    """1 at the first maximum along ``axis``, else 0."""
    return torch.zeros_like(x).scatter_(axis, x.argmax(axis, keepdim=True), 1)


def _load_parametric_relu(problem: Problem) -> Kernel:
    """One slope a channel goes to torch's own kernel; other shapes broadcast by hand."""
    slope = problem.operands[1]
    dims = rank(problem)
    if slope is not None and slope.constant is not None and dims is not None and dims >= 2:
        shape = (1,) * (dims - slope.constant.ndim) + slope.constant.shape
        data = problem.operands[0]
        channels = data.type.shape[1] if data is not None and data.type.shape else None
        if len(shape) == dims and slope.constant.size == shape[1] and shape[1] in (1, channels):
            return bind(problem, lambda x, y: functional.prelu(x, y.reshape(-1)))
    return bind(problem, lambda x, y: torch.where(x < 0, x * y, x))


def _rule(load: Callable[[Problem], Kernel], since: int = 1, numbers: Any = FLOATS) -> Rule:
    return Rule(load, takes(numbers), since)


_RULES: dict[str, Rule] = {
    "Relu": _rule(_with(torch.relu), numbers=NUMBERS),
    "LeakyRelu": _rule(_with(functional.leaky_relu, alpha=0.01)),
    "PRelu": _rule(_load_parametric_relu, since=9),
    "Elu": _rule(_with(functional.elu, alpha=1.0)),
    "Selu": _rule(_with(_selu, alpha=1.6732632423543772, gamma=1.0507009873554805)),
    "Celu": _rule(_with(_celu, alpha=1.0)),
    "Gelu": _rule(_load_gelu),
    "Sigmoid": _rule(_with(torch.sigmoid)),
    "Softplus": _rule(_with(_softplus)),
    "Softsign": _rule(_with(functional.softsign)),
    "HardSigmoid": _rule(_load_hard_sigmoid),
    "HardSwish": _rule(_with(functional.hardswish)),
    "Mish": _rule(_with(functional.mish)),
    "Swish": _rule(_with(_swish, alpha=1.0)),
    "SwiGLU": _rule(_load_gated_swish),
    "ThresholdedRelu": _rule(_with(_thresholded_relu, alpha=1.0)),
    "Shrink": _rule(_with(_shrink, bias=0.0, lambd=0.5)),
    "Softmax": _rule(_along_axis(torch.softmax), since=13),
    "LogSoftmax": _rule(_along_axis(torch.log_softmax), since=13),
    "Hardmax": _rule(_along_axis(_hardmax), since=13),
}


class Activation(RuleFamily):
    name = "activation"
    rules: ClassVar[Mapping[tuple[str, str], Rule]] = {
        ("", name): rule for name, rule in _RULES.items()
    }


SOLUTIONS: Sequence[Solution] = (Activation(),)
