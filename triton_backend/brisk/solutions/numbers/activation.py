"""Activations on torch; the numbers behind each are bound when the layer loads."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn import functional

from brisk.solutions.base import Kernel, Problem
from brisk.solutions.rules import FLOATS, NUMBERS, Rule, bind, plain, takes


def _with(function: Callable[..., torch.Tensor], **defaults: float) -> Callable[[Problem], Kernel]:
    """A loader that passes the attributes in ``defaults`` behind the operands, in order."""

    def load(problem: Problem) -> Kernel:
        numbers = [problem.attribute(name, value) for name, value in defaults.items()]
        return bind(problem, lambda *values: function(*values, *numbers))

    return load


def _selu(x: torch.Tensor, alpha: float, gamma: float) -> torch.Tensor:
    return torch.ops.aten.elu(x, alpha, gamma)


def _swish(x: torch.Tensor, alpha: float) -> torch.Tensor:
    return functional.silu(x) if alpha == 1.0 else x * torch.sigmoid(alpha * x)


def _gated_swish(gate: torch.Tensor, value: torch.Tensor, alpha: float) -> torch.Tensor:
    return _swish(gate, alpha) * value


def _hard_sigmoid(x: torch.Tensor, alpha: float, beta: float) -> torch.Tensor:
    return torch.clamp(x * alpha + beta, 0.0, 1.0)


def _thresholded_relu(x: torch.Tensor, alpha: float) -> torch.Tensor:
    return functional.threshold(x, alpha, 0.0)


def _shrink(x: torch.Tensor, bias: float, threshold: float) -> torch.Tensor:
    """y = x + bias below -threshold, x - bias above it, 0 between."""
    outside = torch.where(x < -threshold, x + bias, x - bias)
    return torch.where(x.abs() > threshold, outside, torch.zeros_like(x))


def _load_gelu(problem: Problem) -> Kernel:
    approximate = problem.attribute("approximate", "none")
    return bind(problem, lambda x: functional.gelu(x, approximate=approximate))


def _hardmax(x: torch.Tensor, axis: int) -> torch.Tensor:
    """1 at the first maximum along ``axis``, else 0."""
    return torch.zeros_like(x).scatter_(axis, x.argmax(axis, keepdim=True), 1)


def _parametric_relu(x: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    return torch.where(x < 0, x * slope, x)


def _rule(load: Callable[[Problem], Kernel], since: int = 1) -> Rule:
    return Rule(load, takes(FLOATS), since)


ACTIVATION: dict[str, Rule] = {
    "Relu": Rule(plain(torch.relu), takes(NUMBERS)),
    "LeakyRelu": _rule(_with(functional.leaky_relu, alpha=0.01)),
    "PRelu": _rule(plain(_parametric_relu), since=9),
    "Elu": _rule(_with(functional.elu, alpha=1.0)),
    "Selu": _rule(_with(_selu, alpha=1.6732632423543772, gamma=1.0507009873554805)),
    "Celu": _rule(_with(torch.celu, alpha=1.0)),
    "Gelu": _rule(_load_gelu),
    "Sigmoid": _rule(plain(torch.sigmoid)),
    "Softplus": _rule(plain(functional.softplus)),
    "Softsign": _rule(plain(functional.softsign)),
    "HardSigmoid": _rule(_with(_hard_sigmoid, alpha=0.2, beta=0.5)),
    "HardSwish": _rule(plain(functional.hardswish)),
    "Mish": _rule(plain(functional.mish)),
    "Swish": _rule(_with(_swish, alpha=1.0)),
    "SwiGLU": _rule(_with(_gated_swish, alpha=1.0)),
    "ThresholdedRelu": _rule(_with(_thresholded_relu, alpha=1.0)),
    "Shrink": _rule(_with(_shrink, bias=0.0, lambd=0.5)),
    "Softmax": _rule(_with(torch.softmax, axis=-1), since=13),
    "LogSoftmax": _rule(_with(torch.log_softmax, axis=-1), since=13),
    "Hardmax": _rule(_with(_hardmax, axis=-1), since=13),
}
