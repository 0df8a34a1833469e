"""One job's values and its position in a model's segments."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from brisk.errors import BriskError, InternalError, InvalidRequestError
from brisk.segments.onnxruntime import onnxruntime
from brisk.segments.program import LoadedSegment, SegmentProgram, requested_slots
from brisk.segments.values import Value, to_array, to_ort_value

_OURS = (MemoryError, TypeError, AttributeError)
"""Exceptions that are never a request's fault."""


class SegmentFrame:
    """One job's run of a model, one segment at a time; belongs to one thread at a time.

    Raises InvalidRequestError if the inputs do not fit the model: from the constructor, or from
    ``step`` for what only the values show. A frame whose ``step`` has raised cannot go on.
    """

    __slots__ = ("_held", "_position", "_program", "_requested", "_segments", "_values")

    early = None
    """None: no learned caches answer rows of this frame."""

    def __init__(
        self,
        program: SegmentProgram,
        inputs: Mapping[str, Value],
        requested: Sequence[str] | None = None,
    ) -> None:
        """Begin a job. ``inputs`` by name; ``requested`` output names, None for all."""
        self._requested = requested_slots(program.outputs, requested)
        self._values = program.bind_inputs(inputs)
        self._program = program
        self._segments = program.segments.current()
        self._position = 0
        self._held: list[np.ndarray] = []
        """Arrays whose memory OrtValues show."""

    @property
    def position(self) -> int:
        """The number of segments done so far."""
        return self._position

    @property
    def upcoming(self) -> str:
        """The next segment in words, for traces; empty if the job is finished."""
        if self.is_finished:
            return ""
        spec = self._program.plan.segments[self._position]
        return f"{spec.index} {spec.words}"

    @property
    def is_finished(self) -> bool:
        return self._position == len(self._segments)

    def step(self) -> bool:
        """Run one segment and free what no later one reads. Return whether the job is finished."""
        values, position = self._values, self._position
        if position == len(self._segments):
            return True
        segment = self._segments[position]
        if segment is None:  # it is still to be loaded
            segment = self._program.segments[position]
        try:
            if segment.goes_by_arrays:
                arguments = [to_array(values[slot]) for slot in segment.reads]
            else:
                arguments = [self._ort_value(slot) for slot in segment.reads]
            options = control().options(shrinks_arena=segment.session.shrinks_arena)
            feeds = dict(zip(segment.inputs, arguments))  # noqa: B905
            results = segment.run(feeds, segment.outputs, options)
        except BriskError:
            raise
        except Exception as error:
            raise self._classify(segment, error) from error
        for place, slot in enumerate(segment.writes):
            values[slot] = results[place]  # iterating ends by a C++ exception, which costs 40 us
        for slot in segment.dead:
            values[slot] = None
        self._position = position = position + 1
        return position == len(self._segments)

    def value_at(self, name: str) -> Value:
        """Return a value that is live at this boundary; the caller must not change it.

        Raises KeyError for a name that crosses no boundary, InternalError if it is not live here.
        """
        value = self._values[self._program.slots[name]]
        if value is None:
            raise InternalError(f"'{name}' does not live at segment {self._position}")
        return to_array(value)

    def keep_rows(self, rows: np.ndarray) -> None:
        """Go on with some rows of the batch, in all values that are live at this boundary.

        ``rows``: int64. Precondition: the first dimension of each of these values is the batch.
        """
        for slot, value in enumerate(self._values):
            if value is not None:
                self._values[slot] = to_array(value)[rows]

    def results(self) -> dict[str, Value]:
        """Return the requested outputs by name. Precondition: the job is finished."""
        if not self.is_finished:
            raise InternalError(
                f"model '{self._program.plan.name}' has run {self._position} of "
                f"{len(self._segments)} segments, results were asked for"
            )
        return {name: to_array(self._values[slot]) for name, slot in self._requested.items()}

    def _ort_value(self, slot: int) -> Any:
        value = self._values[slot]
        if isinstance(value, np.ndarray):
            self._held.append(value)
            value = self._values[slot] = to_ort_value(value)
        return value

    def _classify(self, segment: LoadedSegment, error: Exception) -> BriskError:
        """Return the failure as an InternalError or an InvalidRequestError.

        A failure is ours if all inputs of the model have a fixed shape and ONNX Runtime does not
        name an argument as the cause (a value, an index), or if it is one of ``_OURS``; the rest
        comes from the request.
        """
        spec = segment.spec
        text = f"segment {spec.index} ({spec.words}) failed: {error}"
        if isinstance(error, UnicodeError):
            return InvalidRequestError(f"a string is not UTF-8, as ONNX Runtime's are: {text}")
        if isinstance(error, _OURS):
            return InternalError(text)
        if self._program.is_static and type(error).__name__ != "InvalidArgument":
            return InternalError(text)
        return InvalidRequestError(text)


def run_serially(
    program: SegmentProgram, inputs: Mapping[str, Value], requested: Sequence[str] | None = None
) -> dict[str, Value]:
    """Run the whole model in the calling thread; return the requested outputs by name."""
    frame = SegmentFrame(program, inputs, requested)
    while not frame.step():
        pass
    return frame.results()


RunAll = Callable[[Sequence[str], Mapping[str, np.ndarray], Any], Sequence[np.ndarray]]
"""A function that computes the named outputs from input arrays by name, under the caller's
``RunOptions``."""


def run_in_one(program: SegmentProgram) -> RunAll | None:
    """Return a function that runs a program of one loaded segment by a single call; None: there is
    none. It needs types that are all numpy's own, and a segment that makes every output itself.
    Outputs are copied, so it is for small ones. The caller keeps ``program``, and with it the
    memory of its weights, for as long as it calls the function.

    The function raises InvalidRequestError, or what ONNX Runtime raises, for inputs that do not
    fit: ONNX Runtime checks names, types and shapes itself, except for scalars and inputs that may
    be left out.
    """
    segments = program.segments.current()
    segment = segments[0] if len(segments) == 1 else None
    if (
        segment is None
        or segment.session.run is not None
        or segment.goes_by_arrays
        or not set(program.outputs) <= set(segment.outputs)
    ):
        return None
    run: RunAll = segment.session.session._sess.run
    if not any(
        each.variable.optional or each.variable.type.shape == () for each in program.inputs
    ):
        return run
    slots = tuple(zip(segment.inputs, segment.reads, strict=True))

    def run_bound(
        outputs: Sequence[str], inputs: Mapping[str, np.ndarray], options: Any
    ) -> Sequence[np.ndarray]:
        values = program.bind_inputs(inputs)
        return run(outputs, {name: values[slot] for name, slot in slots}, options)

    return run_bound


_SHRINKS = "memory.enable_memory_arena_shrinkage"


class RunControl:
    """The ``RunOptions`` of one thread's runs, by which another thread can end them.

    ONNX Runtime checks the ``RunOptions`` of a run between two nodes, also in a Loop's body, and
    ends the run if they say so: a run of 1.6 s takes 8 ms in the median to stop. A single node
    that never ends is not stopped. Any thread may call ``end``, only the owner the other methods.
    The caller of ``end`` makes sure that the owner still computes what is to end.
    """

    def __init__(self) -> None:
        self._options: dict[bool, Any] = {}
        self._has_ended = False

    def options(self, *, shrinks_arena: bool) -> Any:
        """Return the ``RunOptions`` of the owner's next run, made once.

        ``shrinks_arena``: whether the arena gives back what the run leaves free (the entry's
        ``memory.enable_memory_arena_shrinkage``).
        """
        run_options = self._options.get(shrinks_arena)
        if run_options is None:
            run_options = self._options[shrinks_arena] = onnxruntime().RunOptions()
            if shrinks_arena:
                run_options.add_run_config_entry(_SHRINKS, "cpu:0")
        if self._has_ended:
            run_options.terminate = True
        return run_options

    def end(self) -> None:
        """End the owner's run with an error at its next node, and later runs until ``renew``."""
        self._has_ended = True  # before the loop: options that are made meanwhile are ended, too
        for options in list(self._options.values()):
            options.terminate = True

    @property
    def has_ended(self) -> bool:
        """Whether runs end with an error."""
        return self._has_ended

    def renew(self) -> None:
        """Allow runs again after ``end``."""
        self._options = {}
        self._has_ended = False


_threads = threading.local()


def control() -> RunControl:
    """Return the calling thread's ``RunControl``."""
    try:
        own: RunControl = _threads.control
    except AttributeError:
        own = _threads.control = RunControl()
    return own
