"""What oneDNN can compute in the same pass as a convolution or a linear layer.

The names are those of torch's ``mkldnn::_convolution_pointwise`` and its ``.binary`` overload.
oneDNN's clamping activations return their bound for NaN where ONNX's return NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from brisk.graph.program import Dimension, Epilogue
from brisk.solutions.base import Operand, Problem
from brisk.solutions.epilogue import ONE_SIXTH, clip_bounds, gelu_approximation, number

_PLAIN = {
    "Relu": "relu",
    "Sigmoid": "sigmoid",
    "Tanh": "tanh",
    "Silu": "swish",
    "HardSwish": "hardswish",
}

_BINARY = {"Add": "add", "Mul": "mul"}


@dataclass(frozen=True, slots=True)
class Activation:
    """The attribute, scalars and algorithm arguments of the fused operator."""

    attribute: str
    scalars: tuple[float, ...] = ()
    algorithm: str = ""


NO_ACTIVATION = Activation("none")


@dataclass(frozen=True, slots=True)
class Fusion:
    """The first ``steps`` of the epilogue as one fused operator.

    ``binary``: the operator with the second operand, applied before the activation.
    ``is_certain``: the operand is known to leave the result's shape as it is; otherwise the
    kernel has to compare the shapes at each call.
    """

    steps: int
    activation: Activation = NO_ACTIVATION
    binary: str | None = None
    is_certain: bool = True


def activation_of(step: Epilogue) -> Activation | None:
    """The step as oneDNN knows it; None where it does not."""
    if step.operand is not None:
        return None
    if step.operator in _PLAIN:
        return Activation(_PLAIN[step.operator])
    if step.operator == "Clip":
        low, high = clip_bounds(step)
        if low == 0.0 and high == math.inf:
            return Activation("relu")
        finite = math.isfinite(low) and math.isfinite(high) and low <= high
        return Activation("hardtanh", (low, high)) if finite else None
    if step.operator == "Swish" and number(step.attributes, "alpha", 1.0) == 1.0:
        return Activation("swish")
    if step.operator == "HardSigmoid":
        alpha = number(step.attributes, "alpha", 0.2)
        beta = number(step.attributes, "beta", 0.5)
        exact = math.isclose(alpha, ONE_SIXTH, rel_tol=1e-6) and beta == 0.5
        return Activation("hardsigmoid") if exact else None
    if step.operator == "LeakyRelu":
        return Activation("leaky_relu", (number(step.attributes, "alpha", 0.01),))
    if step.operator == "Gelu":
        return Activation("gelu", (), gelu_approximation(step))
    return None


def fuse_activation(problem: Problem) -> Fusion:
    """The longest fusion without a second operand."""
    activation = activation_of(problem.epilogue[0]) if problem.epilogue else None
    return Fusion(0) if activation is None else Fusion(1, activation)


def fuse_binary(problem: Problem, result: Sequence[Dimension] | None) -> Fusion:
    """The longest fusion for a result of these dimensions, None where they are unknown.

    Only Relu can follow a binary step.
    """
    steps = problem.epilogue
    if not steps or steps[0].operator not in _BINARY or steps[0].operand is None:
        return fuse_activation(problem)
    operand = problem.epilogue_operands[0]
    fits = _fits(operand, result)
    if fits is False:
        return Fusion(0)
    binary = _BINARY[steps[0].operator]
    follows = activation_of(steps[1]) if len(steps) > 1 else None
    if follows is not None and follows.attribute == "relu":
        return Fusion(2, follows, binary, fits is True)
    return Fusion(1, NO_ACTIVATION, binary, fits is True)


def _fits(operand: Operand, result: Sequence[Dimension] | None) -> bool | None:
    """Whether the operand has the result's shape or one value per channel; None: unknown."""
    shape = operand.type.shape
    if shape is None or result is None or len(shape) != len(result):
        return False
    per_channel = (1, result[1], *(1 for _ in result[2:]))
    if None not in per_channel and shape == per_channel:
        return True
    if None not in shape and None not in result and shape == tuple(result):
        return True
    for size, wanted in zip(shape, result, strict=True):
        if isinstance(size, int) and isinstance(wanted, int) and size != wanted:
            return False
    return None
