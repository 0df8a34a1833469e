"""Arithmetic with constants, activations, softmax, greatest places and reshapes as steps."""

from __future__ import annotations

import math

import numpy as np

from brisk.compiled.table import Kind
from brisk.graph.program import Epilogue
from brisk.native.drawing import (
    ELEMENTS_PER_NS,
    activation_for,
    count_time,
    finish,
    sizes_of,
    source_of,
    weights_of,
)
from brisk.native.sketch import RefusedError, Sketch, Step, View
from brisk.solutions.base import Problem
from brisk.solutions.onednn_fusion import NO_ACTIVATION


def draw_arithmetic(problem: Problem, sketch: Sketch) -> None:
    """A sum of two variables; arithmetic of one and a constant, one number or one a channel."""
    first, second = problem.operand(0), problem.operand(1)
    if first is None or second is None:
        raise RefusedError("an operand is missing")
    if first.constant is None and second.constant is None:
        if problem.operator == "Mul":
            return _draw_gate(problem, sketch)
        if problem.operator != "Add" or first.type.shape != second.type.shape:
            raise RefusedError("two variables of different shapes, or no sum")
        sizes = sizes_of(source_of(problem, sketch).type, sketch)
        read = sketch.value(first.name)
        added = sketch.value(source_of(problem, sketch, 1).name)
        target, none, activation = finish(problem, sketch, sizes)
        if none is not None:
            raise RefusedError("a sum of three")
        sketch.steps.append(Step(Kind.POINTWISE, read, target, added, activation))
        return count_time(sketch, math.prod(sizes) / ELEMENTS_PER_NS)
    is_reversed = first.constant is not None
    source = source_of(problem, sketch, 1 if is_reversed else 0)
    sizes = sizes_of(source.type, sketch)
    scale, shift = _affine(
        problem.operator, weights_of(first if is_reversed else second), is_reversed
    )
    read = sketch.value(source.name)
    target, other, activation = finish(problem, sketch, sizes)
    if scale.size == 1:
        step = Step(Kind.POINTWISE, read, target, other, activation, scale.item(), shift.item())
    else:
        factors, terms = (_by_channel(array, sizes) for array in (scale, shift))
        step = Step(Kind.DEPTHWISE, read, target, other, activation, weights=factors, bias=terms)
    sketch.steps.append(step)
    return count_time(sketch, math.prod(sizes) / ELEMENTS_PER_NS)


def _draw_gate(problem: Problem, sketch: Sketch) -> None:
    """A feature map times one number for each of its channels, in either order."""
    operands = [source_of(problem, sketch, position) for position in (0, 1)]
    factors = [sizes_of(operand.type, sketch)[1:] == (1, 1) for operand in operands]
    if factors == [True, False]:
        operands.reverse()
    elif factors != [False, True]:
        raise RefusedError("a product of two variables of which neither is one number a channel")
    source, gate = operands
    sizes = sizes_of(source.type, sketch)
    if sizes_of(gate.type, sketch) != (sizes[0], 1, 1):
        raise RefusedError("a product of two variables of different channels")
    read, factor = sketch.value(source.name), sketch.value(gate.name)
    target, none, activation = finish(problem, sketch, sizes)
    if none is not None:
        raise RefusedError("a sum behind a product")
    sketch.steps.append(Step(Kind.GATE, read, target, factor, activation))
    count_time(sketch, math.prod(sizes) / ELEMENTS_PER_NS)


def _affine(operator: str, array: np.ndarray, is_reversed: bool) -> tuple[np.ndarray, np.ndarray]:
    """Factor and term by which the operator with this constant is ``x * factor + term``."""
    ones, zeros = np.ones_like(array), np.zeros_like(array)
    if operator == "Add":
        return ones, array
    if operator == "Mul":
        return array, zeros
    if operator == "Sub":
        return (-ones, array) if is_reversed else (ones, -array)
    if is_reversed:
        raise RefusedError("a constant divided by a variable")
    with np.errstate(divide="ignore"):
        factors = ones / array
    if not np.isfinite(factors).all():
        raise RefusedError("division by nothing")
    return factors, zeros


def _by_channel(array: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """One number for each channel. Raises RefusedError where the constant varies otherwise."""
    channels = sizes[0] if len(sizes) == 3 else sizes[-1]
    wanted = (channels, 1, 1) if len(sizes) == 3 else (channels,)
    stripped = array.shape[array.ndim - len(wanted) :]
    if stripped != wanted or array.size != channels or array.ndim > len(sizes) + 1:
        raise RefusedError(f"a constant of shape {array.shape}")
    return np.ascontiguousarray(array.reshape(-1))


def draw_activation(problem: Problem, sketch: Sketch) -> None:
    source = source_of(problem, sketch)
    sizes = sizes_of(source.type, sketch)
    own = activation_for(Epilogue(problem.operator, problem.attributes))
    if problem.epilogue or len([one for one in problem.operands if one is not None]) != 1:
        raise RefusedError("steps behind an activation, or limits that come with each call")
    read = sketch.value(source.name)
    target, _, _ = finish(problem, sketch, sizes)
    sketch.steps.append(Step(Kind.POINTWISE, read, target, None, own))
    count_time(sketch, math.prod(sizes))


def draw_softmax(problem: Problem, sketch: Sketch) -> None:
    source = source_of(problem, sketch)
    sizes = sizes_of(source.type, sketch)
    if problem.attributes.get("axis", -1) not in (-1, len(sizes)) or not 1 <= len(sizes) <= 2:
        raise RefusedError("not over the last dimension of a matrix")
    read = sketch.value(source.name)
    target, second, activation = finish(problem, sketch, sizes)
    if second is not None or activation != NO_ACTIVATION:
        raise RefusedError("steps behind a softmax")
    sketch.steps.append(Step(Kind.SOFTMAX, read, target))
    count_time(sketch, math.prod(sizes))


def draw_argument_maximum(problem: Problem, sketch: Sketch) -> None:
    source = source_of(problem, sketch)
    sizes = sizes_of(source.type, sketch)
    attributes = problem.attributes
    if len(sizes) != 1 or attributes.get("axis", 0) not in (-1, 1) or problem.epilogue:
        raise RefusedError("not over the last dimension of a matrix")
    if attributes.get("select_last_index", 0):
        raise RefusedError("the last of equals is wanted")
    name, read = problem.layer.outputs[0], sketch.value(source.name)
    target = sketch.new_view(sizes_of(problem.outputs[0], sketch, "int64"))
    sketch.values[name] = target
    sketch.integers.add(name)
    sketch.steps.append(Step(Kind.ARGUMENT_MAXIMUM, read, target))
    count_time(sketch, math.prod(sizes))


def draw_reshape(problem: Problem, sketch: Sketch) -> None:
    """The same elements in another shape, each image's its own."""
    source = source_of(problem, sketch)
    if any(operand is not None and operand.constant is None for operand in problem.operands[1:]):
        raise RefusedError("the shape comes with each call")
    before, after = sizes_of(source.type, sketch), sizes_of(problem.outputs[0], sketch)
    if math.prod(before) != math.prod(after) or problem.epilogue:
        raise RefusedError("elements of several images change places")
    view = sketch.dense(source.name)
    is_planar = len(after) == 3 and after[0] > 1 and after[1] * after[2] > 1
    sketch.values[problem.layer.outputs[0]] = View(view.area, after, is_planar)
    count_time(sketch, 0.0)
