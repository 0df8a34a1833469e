"""What drawing any layer takes: its operands, its result, its epilogue, its predicted time."""

from __future__ import annotations

import numpy as np

from brisk.compiled.table import ACTIVATIONS
from brisk.graph.deferral import settled
from brisk.graph.program import Container, Epilogue, ValueType
from brisk.native.sketch import RefusedError, Sketch, View
from brisk.solutions.base import Operand, Problem
from brisk.solutions.onednn_fusion import NO_ACTIVATION, Activation, activation_of

MULTIPLICATIONS_PER_NS = 50.0
DEPTHWISE_PER_NS = 10.0
ELEMENTS_PER_NS = 4.0
_WEIGHT_BYTES_PER_NS = 15.0
_STEP_NS = 100.0


def sizes_of(kind: ValueType, sketch: Sketch, dtype: str = "float32") -> tuple[int, ...]:
    """The shape without the batch; RefusedError where it is not static, or another dtype."""
    if kind.container is not Container.TENSOR or kind.dtype != dtype:
        raise RefusedError(f"{kind.dtype} instead of {dtype}")
    least = 2 if dtype == "float32" else 1
    if kind.shape is None or not least <= len(kind.shape) <= 4 or kind.shape[0] != sketch.batch:
        raise RefusedError(f"shape {kind.shape} does not begin with the batch, {sketch.batch}")
    sizes = tuple(size for size in kind.shape[1:] if isinstance(size, int))
    if len(sizes) != len(kind.shape) - 1 or 0 in sizes:
        raise RefusedError(f"shape {kind.shape} is not known")
    return sizes


def source_of(problem: Problem, sketch: Sketch, position: int = 0) -> Operand:
    """A variable operand of the run's batch."""
    operand = problem.operand(position)
    if operand is None or operand.constant is not None:
        raise RefusedError("an operand is missing or constant")
    sizes_of(operand.type, sketch)
    return operand


def finish(
    problem: Problem, sketch: Sketch, sizes: tuple[int, ...]
) -> tuple[View, View | None, Activation]:
    """The target, the second operand of a fused sum, and the activation behind."""
    steps, second = list(problem.epilogue), None
    if steps and steps[0].operator == "Add" and steps[0].operand is not None:
        operand = problem.epilogue_operands[0]
        if operand.constant is not None or sizes_of(operand.type, sketch) != sizes:
            raise RefusedError("a fused sum with a constant or of another shape")
        second = sketch.value(operand.name)
        steps.pop(0)
    activation = NO_ACTIVATION
    if steps:
        activation = activation_for(steps.pop(0))
    if steps:
        raise RefusedError(f"fused step {steps[0].operator} behind others")
    if sizes_of(problem.outputs[0], sketch) != sizes:
        raise RefusedError(f"the result's shape is {problem.outputs[0].shape}")
    target = sketch.values[problem.layer.outputs[0]] = sketch.new_view(sizes)
    return target, second, activation


def activation_for(step: Epilogue) -> Activation:
    found = activation_of(step)
    if found is None or found.attribute not in ACTIVATIONS or found.algorithm not in ("", "none"):
        raise RefusedError(f"activation {step.operator} is not known")
    return found


def weights_of(operand: Operand | None) -> np.ndarray:
    if operand is None or operand.constant is None or operand.type.dtype != "float32":
        raise RefusedError("weights that are not constant or not float32")
    return np.ascontiguousarray(settled(operand.constant))


def pair(sizes: tuple[int, ...]) -> tuple[int, int]:
    first, second = sizes
    return first, second


def count_time(sketch: Sketch, image_ns: float, weight_bytes: int = 0) -> None:
    sketch.image_ns += image_ns
    sketch.call_ns += _STEP_NS + weight_bytes / _WEIGHT_BYTES_PER_NS
