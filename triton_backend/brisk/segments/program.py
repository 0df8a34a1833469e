"""A model's segments, ready to run: what all its frames share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from brisk.errors import InvalidRequestError
from brisk.graph.files.element_types import name_of_dtype
from brisk.graph.program import ValueType, Variable
from brisk.segments.onnxruntime import OrtSession
from brisk.segments.source import SegmentPlan, SegmentSpec
from brisk.segments.table import LayerTable
from brisk.segments.values import Value


@dataclass(frozen=True, slots=True)
class Part:
    """A session with the slots that it reads, in the order of ``inputs``, writes, and leaves.

    ``run`` takes feeds by name, names of outputs and the options of a run.
    ``goes_by_arrays``: strings, which no OrtValue can be made of, are numpy's.
    """

    spec: SegmentSpec
    run: Callable[[Mapping[str, Any], list[str], Any], Sequence[Any]]
    inputs: tuple[str, ...]
    outputs: list[str]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    dead: tuple[int, ...]
    goes_by_arrays: bool
    session: OrtSession


class InputCheck:
    """Of one input of a model."""

    __slots__ = ("_fixed", "_rank", "variable")

    def __init__(self, variable: Variable) -> None:
        self.variable = variable
        shape = variable.type.shape
        self._rank = None if shape is None else len(shape)
        sizes = enumerate(shape or ())
        self._fixed = [(axis, size) for axis, size in sizes if isinstance(size, int)]

    def accept(self, value: Value) -> Value:
        """The value, C-contiguous; Triton has no tensors of rank 0: a scalar comes as ``[1]`` or
        ``[1, 1]``, as its entry has it.

        Raises InvalidRequestError where it is not of the declared element type or shape.
        """
        declared = self.variable.type
        if not isinstance(value, np.ndarray):
            raise InvalidRequestError(f"input '{self.variable.name}': expected a tensor")
        if self._rank == 0 and value.size == 1:
            value = value.reshape(())
        if name_of_dtype(value.dtype) != declared.dtype or not self._fits(value.shape):
            given = ValueType(name_of_dtype(value.dtype), tuple(value.shape))
            raise InvalidRequestError(
                f"input '{self.variable.name}': expected {describe_type(declared)}, "
                f"got {describe_type(given)}"
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
    """``float32 [N, 3, 224, 224]``, for messages."""
    if declared.shape is None:
        return f"{declared.dtype} of any shape"
    sizes = ", ".join("?" if size is None else str(size) for size in declared.shape)
    return f"{declared.dtype} [{sizes}]"


@dataclass(frozen=True, slots=True)
class SegmentProgram:
    """``parts``: by segment, some of which may still be loading. ``slots``: by name of a value."""

    plan: SegmentPlan
    parts: LayerTable[Part]
    slots: Mapping[str, int]
    inputs: tuple[InputCheck, ...]
    outputs: Mapping[str, int]
    is_static: bool
    """Whether every input is of one shape: then a failing kernel is hardly a request's fault."""

    def bind_inputs(self, inputs: Mapping[str, Value]) -> list[Any]:
        """The slots of a new frame. Raises InvalidRequestError where an input does not fit."""
        values: list[Any] = [None] * len(self.slots)
        taken = 0
        for check in self.inputs:
            name = check.variable.name
            if name in inputs:
                values[self.slots[name]] = check.accept(inputs[name])
                taken += 1
            elif not check.variable.optional:
                raise missing_input(name)
            else:
                values[self.slots[name]] = self.plan.defaults[name]
        if taken != len(inputs):
            known = [check.variable.name for check in self.inputs]
            raise unknown_inputs(inputs, known)
        return values


def missing_input(name: str) -> InvalidRequestError:
    return InvalidRequestError(f"input '{name}' is missing")


def unknown_inputs(given: Collection[str], known: Sequence[str]) -> InvalidRequestError:
    unknown = sorted(set(given) - set(known))
    return InvalidRequestError(f"there is no input {unknown}; the inputs are {known}")


def requested_slots(
    outputs: Mapping[str, int], requested: Sequence[str] | None
) -> Mapping[str, int]:
    """Slot by requested output. Raises InvalidRequestError where there is no such output."""
    if requested is None or tuple(requested) == tuple(outputs):
        return outputs
    unknown = [name for name in requested if name not in outputs]
    if unknown:
        raise InvalidRequestError(f"there is no output {unknown}; the outputs are {list(outputs)}")
    return {name: outputs[name] for name in requested}


def slots_of(plan: SegmentPlan) -> dict[str, int]:
    """A slot for each value that crosses a border of a segment."""
    names = [variable.name for variable in (*plan.inputs, *plan.outputs)]
    names += [name for spec in plan.segments for name in spec.outputs]
    return {name: slot for slot, name in enumerate(dict.fromkeys(names))}


def make_part(spec: SegmentSpec, session: OrtSession, slots: Mapping[str, int]) -> Part:
    opened = session.session
    kinds = [each.type for each in (*opened.get_inputs(), *opened.get_outputs())]
    goes_by_arrays = "tensor(string)" in kinds
    bound = opened._sess
    run: Callable[[Mapping[str, Any], list[str], Any], Sequence[Any]]
    run = session.run or bound.run_with_ort_values
    if goes_by_arrays:  # its arguments stand in another order
        run = lambda feeds, outputs, options: bound.run(outputs, feeds, options)  # noqa: E731
    return Part(
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
