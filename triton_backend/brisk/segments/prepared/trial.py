"""Trials of segments with made-up inputs: whether what was saved answers alike, and what it gains.

Values go from segment to segment, so all but the model's inputs have the shapes of a real run.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from brisk.errors import InvalidModelError
from brisk.graph.files.element_types import dtype_of_name
from brisk.graph.program import ContainerKind
from brisk.segments.model.structure import Structure
from brisk.segments.onnxruntime import OrtSession
from brisk.segments.prepared.oracle import are_alike
from brisk.segments.sharing import open_structure, with_weights
from brisk.segments.source import SegmentPlan, SegmentSpec
from brisk.segments.values import to_array, to_ort_value

SIZES = (128, 224, 32, 1)
"""The sizes tried in order for a model's open dimensions but the first, which is the batch's."""

LEAST_RUNS, MOST_RUNS = 3, 20
LONGEST_S = 0.6
"""The longest that a segment is measured, once it has run ``LEAST_RUNS`` times in each form."""


MOST_LOST, MOST_LOST_S = 0.02, 5e-6
"""The most time that a run may lose in its structure's session and go on there: of that in the
segment's own session, or of a short one."""

MOST_LOST_BY_START = 0.5
"""The most time that a start's run may lose there, of what making the own session takes."""


class SharedStructure(NamedTuple):
    """A structure in whose session a segment answers as in its own."""

    structure: Structure
    own_s: float
    """The time of a run in the segment's own session."""
    shared_s: float

    @property
    def lost_s(self) -> float:
        """The time that a run loses in the structure's session."""
        return self.shared_s - self.own_s

    @property
    def is_lasting(self) -> bool:
        return self.lost_s <= max(MOST_LOST * self.own_s, MOST_LOST_S)


class SegmentTrial:
    """The values of one run, as far as it has come; ``values`` is None if it cannot go on."""

    def __init__(self, plan: SegmentPlan, rows: int = 1) -> None:
        """Begin a run. ``rows``: the size of the batch, if the model leaves it open."""
        self._plan = plan
        self._rows = rows
        self.inputs: dict[str, np.ndarray] = {}  # whose memory ``values`` show
        self.values: dict[str, Any] | None = None

    def run_first(self, segment: SegmentSpec, session: Any) -> list[Any] | None:
        """Return the first segment's outputs, for inputs of the first of SIZES that it accepts, or
        None."""
        for size in SIZES:
            try:
                self.inputs = made_up(self._plan, size, self._rows)
                self.values = {name: to_ort_value(each) for name, each in self.inputs.items()}
            except (KeyError, TypeError, ValueError, RuntimeError):  # of strings, no OrtValue
                break
            if (outputs := self.run(segment, session)) is not None:
                return outputs
        self.values = None
        return None

    def run(self, segment: SegmentSpec, session: Any) -> list[Any] | None:
        """Return the segment's outputs; None: these inputs do not suit the model."""
        if self.values is None:
            return None
        feeds = {name: self.values[name] for name in segment.inputs}
        run: Any = session.run if isinstance(session, OrtSession) else None
        try:
            run = run or session._sess.run_with_ort_values
            return list(run(feeds, list(segment.outputs), None))
        except Exception:  # noqa: BLE001  # made-up inputs need not suit a model
            return None

    def go_on(self, segment: SegmentSpec, outputs: list[Any]) -> None:
        assert self.values is not None
        self.values.update(zip(segment.outputs, outputs, strict=True))
        for name in segment.dead:
            self.values.pop(name, None)

    def results(self) -> dict[str, np.ndarray]:
        """Return the model's outputs that are tensors. Precondition: all segments have gone on."""
        assert self.values is not None
        values = {variable.name: self.values[variable.name] for variable in self._plan.outputs}
        return {name: to_array(value) for name, value in values.items() if value.is_tensor()}


def all_alike(expected: list[Any], found: list[Any] | None) -> bool:
    """Whether two lists of a segment's outputs are alike: see ``are_alike``."""
    return found is not None and all(
        are_alike(to_array(one), to_array(other))
        for one, other in zip(expected, found, strict=True)
        if one.is_tensor()
    )


def are_equal(one: list[Any], other: list[Any]) -> bool:
    """Whether two lists of outputs are equal bit for bit."""
    return list(map(_bits, one)) == list(map(_bits, other))


def check_alike(label: str, expected: list[Any], again: list[Any] | None, found: Any) -> None:
    """Raise InvalidModelError if ``found`` is not what the optimized session answers.

    ``again``: its answer to the same inputs; if that differs, there is nothing to compare.
    """
    if again is None or not are_equal(expected, again):
        return
    if found is None or not are_equal(expected, found):
        raise InvalidModelError(
            f"{label}: saved by ONNX Runtime, it gives other answers than before"
        )


def gains(
    trial: SegmentTrial, segment: SegmentSpec, plain: Any, others: Sequence[Any]
) -> list[float] | None:
    """Return the run time of ``plain`` over that of each of ``others`` (``fastest_s``); None: a
    run failed."""
    times_s = fastest_s(trial, segment, (plain, *others))
    return None if times_s is None else [times_s[0] / each for each in times_s[1:]]


def fastest_s(
    trial: SegmentTrial, segment: SegmentSpec, sessions: Sequence[Any]
) -> list[float] | None:
    """Return the time of the fastest of interleaved runs of each session; None: a run failed."""
    times: list[list[float]] = [[] for _ in sessions]
    begun_s = time.perf_counter()
    for count in range(MOST_RUNS):
        for session, session_times in zip(sessions, times, strict=True):
            started_s = time.perf_counter()
            if trial.run(segment, session) is None:
                return None
            session_times.append(time.perf_counter() - started_s)
        if count + 1 >= LEAST_RUNS and time.perf_counter() - begun_s > LONGEST_S:
            break
    return [min(each) for each in times]


def try_structure(
    trial: SegmentTrial,
    segment: SegmentSpec,
    structure: Structure,
    threads: int,
    plain: Any,
    made_s: float,
    outputs: list[Any],
) -> SharedStructure | None:
    """Run the segment in its structure's session; None: it answers otherwise there, or a start
    would gain nothing.

    ``plain``: the segment's own session, made in ``made_s``; ``outputs``: of that.
    """
    try:
        opened = open_structure(structure.proto, threads)
        session = with_weights(
            opened, segment, structure.inputs, structure.outputs, structure.weights
        )
    except Exception:  # noqa: BLE001  # ONNX Runtime's have no common class
        return None
    shared_outputs = trial.run(segment, session)
    if shared_outputs is None or not are_equal(outputs, shared_outputs):
        return None
    times_s = fastest_s(trial, segment, (plain, session))
    if times_s is None:
        return None
    shared = SharedStructure(structure, *times_s)
    helps = shared.is_lasting or shared.lost_s <= MOST_LOST_BY_START * made_s
    return shared if helps else None


def _bits(value: Any) -> Any:
    """Return a key by which values are equal bit for bit; None for a value that is no tensor."""
    if not value.is_tensor():
        return None
    if value.data_type() == "tensor(string)":
        return value.numpy().tolist()
    size = value.tensor_size_in_bytes()
    return (value.data_type(), value.shape(), ctypes.string_at(value.data_ptr(), size))


def has_open_rows(plan: SegmentPlan) -> bool:
    """Whether the first dimension of every input without a default is left open."""
    shapes = [each.type.shape for each in plan.inputs if each.name not in plan.defaults]
    return bool(shapes) and all(shape and not isinstance(shape[0], int) for shape in shapes)


def made_up(plan: SegmentPlan, size: int, rows: int = 1) -> dict[str, np.ndarray]:
    """Return inputs by name, open dimensions of ``size`` but for the first, which is ``rows``.

    Raises ValueError, KeyError and TypeError for inputs that cannot be made up.
    """
    rng = np.random.default_rng(0)
    inputs = {}
    for variable in plan.inputs:
        kind = variable.type
        if kind.container is not ContainerKind.TENSOR or kind.dtype is None:
            raise ValueError(f"input '{variable.name}' is no tensor of a known type")
        if variable.name in plan.defaults:
            inputs[variable.name] = plan.defaults[variable.name]
            continue
        if kind.shape is None:
            raise ValueError(f"input '{variable.name}' has any shape")
        shape = [
            each if isinstance(each, int) else (size if axis else rows)
            for axis, each in enumerate(kind.shape)
        ]
        inputs[variable.name] = _array(kind.dtype, shape, rng)
    return inputs


def _array(name: str, shape: list[int], rng: np.random.Generator) -> np.ndarray:
    """Return normally distributed floats; ones of integers, which may be indices, lengths or
    masks."""
    dtype = dtype_of_name(name)
    if dtype.kind == "O":
        return np.full(shape, "a", object)
    if dtype.kind in "biu":
        return np.ones(shape, dtype)
    return rng.standard_normal(shape).astype(dtype)
