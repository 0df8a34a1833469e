"""The manifest of a prepared form's file: what the form depends on; its segments; its plan,
written and read."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import brisk
from brisk.artefacts import store
from brisk.artefacts.container import Container, ContainerDraft
from brisk.errors import ArtefactError
from brisk.graph.files.element_types import dtype_of_name
from brisk.graph.program import ContainerKind, ValueType, Variable
from brisk.segments.onnxruntime import Weight, onnxruntime
from brisk.segments.sharing import KeptStructure
from brisk.segments.source import SegmentPlan, SegmentSpec

SCHEMA = 13


def fingerprint(taps: Collection[str] = ()) -> dict[str, str]:
    """Return what the prepared form of a model depends on in addition to the model.

    Threads are not part of it: ONNX Runtime optimizes for one as for many.
    """
    library = onnxruntime()
    return {
        "schema": str(SCHEMA),
        "engine": f"onnxruntime {library.__version__}, {library.get_build_info()}",
        "cpu": store.processor(),
        "byte order": sys.byteorder,
        "brisk": brisk.__version__,
        "taps": "\n".join(sorted(taps)),
    }


LEAST_GAIN = 1.05
"""The least gain by packing a session's weights that is worth its memory."""

SEVERAL_ROWS = 4
"""The rows of a batch that packing is measured with, too: a row alone is multiplied by weights as
they are, several are not. Networks of matrices took 2 to 4 times as long without packing from two
on."""

LEAST_BATCH_GAIN = 1.2
"""The least gain by packing for a batch of ``SEVERAL_ROWS``: not every model is asked for one."""

LEAST_PATTERN_GAIN = 1.01
"""The least gain by a memory pattern: a block for all of a run, in addition to what the first run
has taken."""


@dataclass(frozen=True, slots=True)
class KeptSegment:
    """A segment in a prepared form. Gains are None if they were not measured."""

    proto: int
    """The number of the blob with its ONNX model."""
    weights: tuple[Weight, ...]
    blobs: tuple[int, ...]
    """The numbers of the weights' blobs."""
    gain: float | None
    """The time of a run without packed weights over that with them."""
    batch_gain: float | None
    """``gain`` for several rows."""
    pattern_gain: float | None
    """The time of a run without a memory pattern over that with one."""
    needs_packing: bool
    """Whether the segment answers differently if its weights are not packed."""
    digest: str
    """The digest of all that a session is made from, by which equal segments are known."""
    structure: KeptStructure | None = None
    """The structure; None if models of other weights cannot share its session."""
    tables: tuple[tuple[str, str], ...] = ()
    """The weights of which a run reads rows, each with the input that names them."""

    @property
    def packs_for_a_row(self) -> bool:
        """Whether a single row is computed with packed weights."""
        return self.needs_packing or self.gain is None or self.gain >= LEAST_GAIN

    @property
    def packs(self) -> bool:
        """Whether the segment's warm session has its weights packed."""
        if self.packs_for_a_row:
            return True
        return self.batch_gain is not None and self.batch_gain >= LEAST_BATCH_GAIN

    @property
    def gains_by_pattern(self) -> bool:
        return self.pattern_gain is None or self.pattern_gain >= LEAST_PATTERN_GAIN


def write_plan(plan: SegmentPlan, draft: ContainerDraft) -> dict[str, Any]:
    """Return the plan as values of JSON; elements of arrays become blobs of ``draft``."""
    return {
        "name": plan.name,
        "inputs": [_write_variable(each) for each in plan.inputs],
        "fixed": [_write_variable(each) for each in plan.fixed],
        "outputs": [_write_variable(each) for each in plan.outputs],
        "segments": [
            [list(each.inputs), list(each.outputs), list(each.dead), each.words]
            for each in plan.segments
        ],
        "defaults": {name: _write_array(array, draft) for name, array in plan.defaults.items()},
    }


def read_plan(record: Mapping[str, Any], container: Container) -> SegmentPlan:
    """Return the plan that ``write_plan`` recorded. Raises KeyError, TypeError, ValueError or
    ArtefactError for any other record."""
    plan = SegmentPlan(
        name=str(record["name"]),
        inputs=tuple(map(_read_variable, record["inputs"])),
        outputs=tuple(map(_read_variable, record["outputs"])),
        segments=tuple(
            SegmentSpec(index, tuple(inputs), tuple(outputs), tuple(dead), str(words))
            for index, (inputs, outputs, dead, words) in enumerate(record["segments"])
        ),
        defaults={
            name: _read_array(array, container) for name, array in record["defaults"].items()
        },
        fixed=tuple(map(_read_variable, record["fixed"])),
    )
    _check_values(plan, container)
    return plan


def _check_values(plan: SegmentPlan, container: Container) -> None:
    """Check that every value is made before it is read, and still live. Raises ArtefactError."""
    live = {variable.name for variable in plan.inputs}
    for segment in plan.segments:
        if missing := set(segment.inputs) - live:
            raise ArtefactError(
                f"{container.path}: segment {segment.index} lacks {sorted(missing)}"
            )
        live = (live | set(segment.outputs)) - set(segment.dead)
    if missing := {variable.name for variable in plan.outputs} - live:
        raise ArtefactError(f"{container.path}: nothing makes {sorted(missing)}")


def _write_variable(variable: Variable) -> list[Any]:
    kind = variable.type
    shape = None if kind.shape is None else list(kind.shape)
    return [variable.name, [kind.dtype, shape, kind.container.value], variable.optional]


def _read_variable(record: Any) -> Variable:
    name, (dtype, shape, container), optional = record
    kind = ValueType(dtype, None if shape is None else tuple(shape), ContainerKind(container))
    return Variable(name, kind, bool(optional))


def _write_array(array: np.ndarray, draft: ContainerDraft) -> list[Any]:
    """Write the array. Return ``[dtype, shape, blob number]``, or ``["string", shape, [text,
    ...]]`` for strings."""
    shape = list(array.shape)
    if array.dtype.kind in "OUS":
        return ["string", shape, [str(item) for item in array.reshape(-1)]]
    elements = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return [array.dtype.name, shape, draft.add(elements)]


def _read_array(record: Any, container: Container) -> np.ndarray:
    """Return the array, a view of the container, whose elements are compared with their
    checksum."""
    name, shape, content = record
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ArtefactError(f"{container.path}: an array of shape {shape}")
    if name == "string":
        return np.array(content, object).reshape(shape)
    container.verify(content)
    return container.view(content).view(dtype_of_name(name)).reshape(shape)
