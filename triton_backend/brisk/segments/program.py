"""A model's segments, ready to run: the data that all its frames share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from brisk.errors import InvalidRequestError
from brisk.graph.files.element_types import name_of_dtype
from brisk.graph.program import ValueType, Variable
from brisk.segments.onnxruntime import OrtSession
from brisk.segments.source import SegmentPlan, SegmentSpec
from brisk.segments.table import SegmentTable
from brisk.segments.values import Value


@dataclass(frozen=True, slots=True)
class LoadedSegment:
    """A segment's session with the slots of a frame that it reads and writes."""

    spec: SegmentSpec
    run: Callable[[Mapping[str, Any], list[str], Any], Sequence[Any]]
    """The function that runs it, of feeds by name, names of outputs and a run's options."""
    inputs: tuple[str, ...]
    outputs: list[str]
    reads: tuple[int, ...]
    """The slots of ``inputs``, in their order."""
    writes: tuple[int, ...]
    """The slots of ``outputs``, in their order."""
    dead: tuple[int, ...]
    """The slots that no later segment reads."""
    goes_by_arrays: bool
    """Whether values go in and out as numpy arrays: no OrtValue can be made of strings."""
    session: OrtSession


class InputCheck:
    """The check of one input of a model."""

    __slots__ = ("_fixed", "_rank", "variable")

    def __init__(self, variable: Variable) -> None:
        self.variable = variable
        shape = variable.type.shape
        self._rank = None if shape is None else len(shape)
        sizes = enumerate(shape or ())
        self._fixed = [(axis, size) for axis, size in sizes if isinstance(size, int)]

    def accept(self, value: Value) -> Value:
        """Return the value, C-contiguous.

        Triton has no tensors of rank 0: a scalar arrives as ``[1]`` or ``[1, 1]``, as its entry
        declares it. Raises InvalidRequestError if it is not of the declared element type or shape.
        """
        declared = self.variable.type
        if self._rank == 0 and value.size == 1:
            value = value.reshape(())
        if name_of_dtype(value.dtype) != declared.dtype or not self._fits(value.shape):
            actual = ValueType(name_of_dtype(value.dtype), tuple(value.shape))
            raise InvalidRequestError(
                f"input '{self.variable.name}': expected {describe_type(declared)}, "
                f"got {describe_type(actual)}"
            )
        return value if value.flags.c_contiguous else np.ascontiguousarray(value)

    def _fits(self, shape: tuple[int, ...]) -> bool:
        if self._rank is None:
            return True
        if len(shape) != self._rank:
            return False
        for axis, size in self._fixed:  # noqa: SIM110  # a generator would cost as much again
            if shape[axis] != size:
                return False
        return True


def describe_type(declared: ValueType) -> str:
    """Return ``float32 [N, 3, 224, 224]``, for messages."""
    if declared.shape is None:
        return f"{declared.dtype} of any shape"
    sizes = ", ".join("?" if size is None else str(size) for size in declared.shape)
    return f"{declared.dtype} [{sizes}]"


@dataclass(frozen=True, slots=True)
class SegmentProgram:
    """A model as its frames run it."""

    plan: SegmentPlan
    segments: SegmentTable[LoadedSegment]
    """The segments in their order, some of which may still be loading."""
    slots: Mapping[str, int]
    """The place of each value in a frame, by the value's name."""
    inputs: tuple[InputCheck, ...]
    outputs: Mapping[str, int]
    is_static: bool
    """Whether all inputs have fixed shapes: then a failing kernel is hardly a request's fault."""

    def bind_inputs(self, inputs: Mapping[str, Value]) -> list[Any]:
        """Return the slots of a new frame. Raises InvalidRequestError if an input does not fit."""
        values: list[Any] = [None] * len(self.slots)
        used = 0
        for check in self.inputs:
            name = check.variable.name
            if name in inputs:
                values[self.slots[name]] = check.accept(inputs[name])
                used += 1
            elif not check.variable.optional:
                raise InvalidRequestError(f"input '{name}' is missing")
            else:
                values[self.slots[name]] = self.plan.defaults[name]
        if used != len(inputs):
            names = [check.variable.name for check in self.inputs]
            unknown = sorted(set(inputs) - set(names))
            raise InvalidRequestError(f"there is no input {unknown}; the inputs are {names}")
        return values


def requested_slots(
    outputs: Mapping[str, int], requested: Sequence[str] | None
) -> Mapping[str, int]:
    """Return slots by requested output. Raises InvalidRequestError if there is no such output."""
    if requested is None or tuple(requested) == tuple(outputs):
        return outputs
    unknown = [name for name in requested if name not in outputs]
    if unknown:
        raise InvalidRequestError(f"there is no output {unknown}; the outputs are {list(outputs)}")
    return {name: outputs[name] for name in requested}


def slots_of(plan: SegmentPlan) -> dict[str, int]:
    """Return a slot for each value that crosses a boundary of a segment."""
    names = [variable.name for variable in (*plan.inputs, *plan.outputs)]
    names += [name for spec in plan.segments for name in spec.outputs]
    return {name: slot for slot, name in enumerate(dict.fromkeys(names))}


def make_segment(
    spec: SegmentSpec, session: OrtSession, slots: Mapping[str, int]
) -> LoadedSegment:
    """Return the segment of ``spec`` that runs in ``session``."""
    opened = session.session
    kinds = [each.type for each in (*opened.get_inputs(), *opened.get_outputs())]
    goes_by_arrays = "tensor(string)" in kinds
    bound = opened._sess
    run: Callable[[Mapping[str, Any], list[str], Any], Sequence[Any]]
    if session.run is not None:
        run = session.run.with_arrays if goes_by_arrays else session.run
    elif goes_by_arrays:  # its arguments are in another order
        run = lambda feeds, outputs, options: bound.run(outputs, feeds, options)  # noqa: E731
    else:
        run = bound.run_with_ort_values
    return LoadedSegment(
        spec,
        run,
        spec.inputs,
        list(spec.outputs),
        tuple(slots[name] for name in spec.inputs),
        tuple(slots[name] for name in spec.outputs),
        tuple(slots[name] for name in spec.dead if name in slots),
        goes_by_arrays,
        session,
    )
