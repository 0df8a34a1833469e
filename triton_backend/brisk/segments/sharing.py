"""Sessions that models of one structure share, each with its own weights (PASK, III-C).

The module imports no onnx: a start from a prepared form does without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from brisk.errors import ArtefactError
from brisk.segments.onnxruntime import (
    OrtSession,
    StructureRun,
    Weight,
    onnxruntime,
    session_options,
    value_in_place,
)
from brisk.segments.source import SegmentSpec
from brisk.tuning import SessionTuning


@dataclass(frozen=True, slots=True)
class KeptStructure:
    """A segment's structure in its prepared form. Names are the structure's."""

    proto: int
    """The number of the blob with the graph."""
    digest: str
    """The graph's digest."""
    inputs: tuple[str, ...]
    """The names of inputs, in the order of the segment's."""
    outputs: tuple[str, ...]
    """The names of outputs, in the order of the segment's."""
    weights: tuple[Weight, ...]
    blobs: tuple[int, ...]
    """The numbers of the weights' blobs."""
    speed: float
    """The time of a run of the segment's own session over that of the structure's."""
    is_lasting: bool
    """Whether the segment goes on in the structure's session; else only a start runs there, until
    the segment's own session is made."""
    recipes: tuple[Any, ...] | None = None
    """The recipes by which each weight follows from another model's; None if it does not."""


def read_structure(
    record: Mapping[str, Any] | None, weight_of: Callable[..., Weight]
) -> KeptStructure | None:
    """Return the structure of a manifest's record; None: there is none. ``weight_of``: makes a
    weight of its record.

    Raises KeyError, TypeError or ValueError if the record is malformed.
    """
    if record is None:
        return None
    weights = record["weights"]
    return KeptStructure(
        int(record["proto"]),
        str(record["digest"]),
        tuple(map(str, record["inputs"])),
        tuple(map(str, record["outputs"])),
        tuple(weight_of(*each) for each in weights),
        tuple(int(blob) for _, _, _, blob in weights),
        float(record["speed"]),
        bool(record["is_lasting"]),
        None if record["recipes"] is None else tuple(record["recipes"]),
    )


def open_structure(
    proto: bytes,
    threads: int,
    tuning: SessionTuning = SessionTuning(),  # noqa: B008  # immutable
    *,
    spins_long: bool = False,
    uses_memory_pattern: bool = False,
) -> OrtSession:
    """Open a session for any model of a structure, to be run through ``with_weights``."""
    options = session_options(
        tuning,
        threads,
        is_warm=False,
        spins_long=spins_long,
        uses_memory_pattern=uses_memory_pattern,
    )
    session = onnxruntime().InferenceSession(proto, options, providers=["CPUExecutionProvider"])
    return OrtSession(session, ())


def with_weights(
    structure: OrtSession,
    spec: SegmentSpec,
    inputs: Sequence[str],
    outputs: Sequence[str],
    weights: Sequence[Weight],
    *,
    shrinks_arena: bool = False,
) -> OrtSession:
    """Return the structure's session with one model's weights, to be run like that model's own.

    Raises ArtefactError if the weights are not those that the structure computes with.
    """
    declared = {each.name: each for each in structure.session.get_inputs()}
    values = {}
    for weight in weights:
        expected, value = declared.get(weight.name), value_in_place(weight)
        if expected is None or value is None or list(weight.shape) != list(expected.shape):
            raise ArtefactError(
                f"weight '{weight.name}' of segment {spec.index} is of shape "
                f"{list(weight.shape)}, which its structure does not take"
            )
        values[weight.name] = value
    if len(values) + len(inputs) != len(declared):
        raise ArtefactError(f"segment {spec.index} has not all weights of its structure")
    run = StructureRun(
        structure.session,
        dict(zip(spec.inputs, inputs, strict=True)),
        dict(zip(spec.outputs, outputs, strict=True)),
        values,
    )
    held = (structure, *(weight.data for weight in weights))
    return OrtSession(structure.session, held, shrinks_arena, run)
