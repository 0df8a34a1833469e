"""A small model that its stub computes itself: requests do not cross to the worker and back.

The worker offers it (``brisk.runtime.requests.offering``) once the model is warm, often used and
quick: then the way to the worker costs several times what the network does. The stub maps the same
prepared form, so that weights are in memory once, and runs the same segments by the same code.

Urgent or large requests, and all while the worker has real-time work, still go to the worker. If
one run takes much too long, all later requests go there.
"""

from __future__ import annotations

import json
import mmap
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import triton_python_backend_utils as pb_utils

from brisk.errors import UnavailableError
from brisk.protocol.datatypes import BY_ELEMENT_NAME
from brisk.protocol.records import ComputedInStub, ComputeInStub, LoadModel
from brisk.stub.config.entry import Entry
from brisk.stub.config.parameters import (
    NORMAL,
    request_agreement,
    request_class,
    requested_outputs,
)
from brisk.telemetry.statistics import RequestAccount

if TYPE_CHECKING:
    from brisk.segments.frame import RunAll, RunControl
    from brisk.segments.program import LoadedSegment, SegmentProgram

LONGEST_NS, LONGEST_TRIED_NS = 4_000_000, 8_000_000
"""The longest expected run that the stub computes itself, by measured times and by an estimate
from fewer rows: longer ones gain nothing by being here. The estimate may be higher, since a run of
twice the rows takes less than twice the time."""

MOST_ROWS = 1 << 20

TOO_LONG_NS, HANGS_NS, COMPUTES_NS = 50_000_000, 1_000_000_000, 20_000_000
"""The age at which a run is ended that has had COMPUTES_NS of a processor while it was watched,
and at which any run is; then the worker computes the model for good. A run that gets no processor,
as in a container that has used up its quota, is no fault of the model."""

LOOK_S = 0.05
"""The time between two checks of a run: each takes the interpreter from Triton's thread."""

SUSPECT_NS = 10_000_000
"""The age from which on a checked run is checked again sooner than after LOOK_S."""

_QUIET_LOOKS = 20
"""The number of successive checks without a run after which the guard sleeps until the next
run."""

TELL_NS = 1_000_000_000
"""The least time between two reports to the worker."""

LEARNT = 15
"""The mask of answers' numbers: durations are learned from answers whose number has none of these
bits set. Learning from each costs more than all else that is done for a request."""

_NO_ARRAYS = frozenset({"string", "bfloat16"})
"""The element types of which Triton's module does not make tensors from arrays as they are."""


class LocalModel:
    """A model that its stub computes.

    Only Triton's thread calls ``answer``. Construct the object in another thread, since that
    imports ONNX Runtime.
    """

    def __init__(
        self,
        model: LoadModel,
        offer: ComputeInStub,
        gate: int,
        tell: Callable[[ComputedInStub], None],
    ) -> None:
        """Map the prepared form. ``gate``: a descriptor, closed here. ``tell``: sends to the
        worker.

        Raises BriskError if the prepared form cannot be used in this process, OSError if it or the
        gate cannot be mapped.
        """
        try:
            page = mmap.mmap(gate, mmap.PAGESIZE, prot=mmap.PROT_READ)
        finally:
            os.close(gate)
        self._realtime = memoryview(page).cast("q")
        program, is_for_a_row = _open(model, offer)
        self._most_rows = 1 if is_for_a_row else MOST_ROWS
        self._program = program
        """The program, which keeps the weights mapped."""
        self._run = _run_of(program)
        self._options: Any = None
        """The ``RunOptions`` of Triton's thread; None before its first run."""
        self._shrinks_arena = any(each.session.shrinks_arena for each in _loaded_segments(program))
        shapes = [each.type.shape for each in program.plan.outputs]
        self._has_scalars = any(not shape for shape in shapes)
        self._joins = model.batching
        self._expected_ns = {1: float(offer.row_ns)}
        """The expected time of a run, by the binary digits of its rows: 1, 2 or 3, 4 to 7, …"""
        self._model = offer.model
        self._tell = tell
        self._answered = self._told = 0
        self._tells_at_ns = time.monotonic_ns() + TELL_NS
        self._guard = Guard()
        self.is_given_up = False

    def expect(self, row_ns: int) -> None:
        """Expect ``row_ns`` a row, and forget what was learned. Any thread may call this."""
        self._expected_ns = {1: float(row_ns)}

    def answer(
        self, requests: Sequence[Any], entry: Entry, account: RequestAccount
    ) -> list[Any] | None:
        """Compute the responses to requests that came in one call, in this thread.

        None if the worker is to compute them, or one of them is invalid: then the worker's path
        answers them and reports errors. Timeouts do not matter for requests computed at once.

        This method makes as few calls as possible: a stub sleeps between requests, so processor
        caches are cold, and each call costs a microsecond or two.
        """
        begun_ns = time.monotonic_ns()
        if self._realtime[0] or self.is_given_up:
            return None
        guard = self._guard
        try:
            if len(requests) > 1:
                return self._answer_joined(requests, entry, account, begun_ns)
            (request,) = requests
            text = request.parameters()
            if text and text != "{}" and not _is_usual(text, entry):
                return None
            feeds, shape = {}, ()
            for tensor in request.inputs():
                array = feeds[tensor.name()] = tensor.as_numpy()
                shape = array.shape
            rows = shape[0] if shape else 1
            expected_ns = self._expected_ns.get(rows.bit_length())
            is_unusual = expected_ns is None or expected_ns > LONGEST_NS or rows > self._most_rows
            if is_unusual and not self._takes(rows):
                return None
            outputs = entry.outputs
            if len(outputs) > 1:
                outputs = requested_outputs(request, outputs)
            options = self._options
            if options is None:
                options = self._begin()
            guard.begun_ns = begun_ns
            if not guard.is_awake:
                guard.wake()
            values = self._run(outputs, feeds, options)
            guard.begun_ns = 0
            if self._has_scalars:
                values = _as_configured(outputs, values, entry)
            response = pb_utils.InferenceResponse(list(map(pb_utils.Tensor, outputs, values)))
        except Exception:  # noqa: BLE001  # the worker's path computes it, and reports errors
            self._clean_up(account)
            return None
        ended_ns = time.monotonic_ns()
        account.uncounted.append((NORMAL, ended_ns - begun_ns, 1))
        self._answered = answered = self._answered + 1
        if expected_ns is None or not answered & LEARNT:
            self._learn(rows, ended_ns - begun_ns)
        if ended_ns >= self._tells_at_ns:
            self._report(account, ended_ns)
        return [response]

    def _answer_joined(
        self, requests: Sequence[Any], entry: Entry, account: RequestAccount, begun_ns: int
    ) -> list[Any] | None:
        """Answer several requests in one run, like ``answer``, but raise errors."""
        if not self._joins:
            return None
        columns: dict[str, list[np.ndarray]] = {}
        for request in requests:
            text = request.parameters()
            if text and text != "{}" and not _is_usual(text, entry):
                return None
            for tensor in request.inputs():
                name = tensor.name()
                if name in columns:
                    columns[name].append(tensor.as_numpy())
                else:
                    columns[name] = [tensor.as_numpy()]
        outputs = entry.outputs
        if len(outputs) > 1:
            (outputs,) = {requested_outputs(request, outputs) for request in requests}
        (counts,) = {tuple(map(len, column)) for column in columns.values()}
        total = sum(counts)
        if len(counts) < len(requests) or not self._takes(total):
            return None
        feeds = {name: np.concatenate(each, casting="no") for name, each in columns.items()}
        options = self._options or self._begin()
        self._guard.begun_ns = begun_ns
        if not self._guard.is_awake:
            self._guard.wake()
        values = self._run(outputs, feeds, options)
        self._guard.begun_ns = 0
        for array in values:
            if not array.shape or len(array) != total:
                self._joins = False
                return None
        responses, begin = [], 0
        for rows in counts:
            end = begin + rows
            tensors = [
                pb_utils.Tensor(name, array[begin:end])
                for name, array in zip(outputs, values)  # noqa: B905  # as many as were asked for
            ]
            responses.append(pb_utils.InferenceResponse(tensors))
            begin = end
        ended_ns = time.monotonic_ns()
        account.uncounted.append((NORMAL, ended_ns - begun_ns, len(requests)))
        self._answered += len(requests)
        self._learn(total, ended_ns - begun_ns)
        if ended_ns >= self._tells_at_ns:
            self._report(account, ended_ns)
        return responses

    def _begin(self) -> Any:
        """Create the ``RunOptions`` of Triton's thread before its first run, and return them."""
        from brisk.segments.frame import control

        own = control()
        self._options = own.options(shrinks_arena=self._shrinks_arena)
        self._guard.watch_own(own)
        return self._options

    def _clean_up(self, account: RequestAccount) -> None:
        """Clean up after a failed run; give the model up if the guard ended the run, so that the
        worker takes it back."""
        self._guard.begun_ns = 0
        if self._guard.has_ended_it and not self.is_given_up:
            self.is_given_up = True
            if self._guard.control is not None:
                self._guard.control.renew()
            self._report(account, time.monotonic_ns(), gives_up=True)

    def _takes(self, rows: int) -> bool:
        """Whether to compute a run of so many rows in this process, by the times of earlier
        runs."""
        if rows > self._most_rows:
            return False
        size = max(1, rows).bit_length()
        known_ns = self._expected_ns.get(size)
        if known_ns is not None:
            if known_ns <= LONGEST_NS:
                return True
            self._expected_ns[size] = 0.99 * known_ns  # so that it is tried again, after a while
            return False
        below = max(each for each in self._expected_ns if each < size)
        return self._expected_ns[below] * 2 ** (size - below) <= LONGEST_TRIED_NS

    def _learn(self, rows: int, taken_ns: int) -> None:
        size = max(1, rows).bit_length()
        known_ns = self._expected_ns.get(size, float(taken_ns))
        taken_ns = min(taken_ns, int(2 * known_ns))  # others may have had the processor
        self._expected_ns[size] = known_ns + 0.1 * (taken_ns - known_ns)

    def _report(self, account: RequestAccount, now_ns: int, *, gives_up: bool = False) -> None:
        """Report to the worker how many requests were answered in this process since the last
        report, and count them."""
        self._tells_at_ns = now_ns + TELL_NS
        account.count()
        durations = account.take_durations()
        answered = self._answered - self._told
        self._tell(ComputedInStub(self._model, answered, durations, gives_up))
        self._told = self._answered

    def close(self) -> None:
        self.is_given_up = True
        self._guard.close()


def _is_usual(text: str, entry: Entry) -> bool:
    """Whether a request's parameters ask for nothing special: class normal, and no agreement.

    Raises InvalidRequestError if they are invalid.
    """
    parameters = json.loads(text)
    is_normal = request_class(parameters, entry.parameters) == NORMAL
    return is_normal and request_agreement(parameters) is None


def _as_configured(
    outputs: Sequence[str], made: Sequence[np.ndarray], entry: Entry
) -> list[np.ndarray]:
    """Reshape values without sizes to the shapes that the entry has for them; return all
    values."""
    return [
        array if array.shape else array.reshape(entry.ones.get(name, ()))
        for name, array in zip(outputs, made, strict=True)
    ]


def _open(model: LoadModel, offer: ComputeInStub) -> tuple[SegmentProgram, bool]:
    """Open all of the prepared form's sessions, on one thread each; return them, and whether they
    are for single rows only.

    Packed weights are a private copy of this process. If they pay only for batches, and Triton
    makes none, a row is computed as fast on the mapped weights.
    """
    from brisk.segments.prepared.form import PreparedModel
    from brisk.segments.starting import open_warm_program

    path, file = Path(offer.prepared), Path(model.path)
    source = PreparedModel(path, file, 1, (), model.tuning, shares=False)  # the only one here
    for variable in (*source.plan.inputs, *source.plan.outputs):
        dtype = variable.type.dtype
        if dtype not in BY_ELEMENT_NAME or dtype in _NO_ARRAYS:
            raise UnavailableError(f"'{variable.name}' is of type {dtype}")
    if model.batching or not any(each.packs and not each.packs_for_a_row for each in source.kept):
        return open_warm_program(source), False
    return open_warm_program(source, source.open_for_a_row), True


def _loaded_segments(program: SegmentProgram) -> list[LoadedSegment]:
    return [segment for segment in program.segments.current() if segment is not None]


def _run_of(program: SegmentProgram) -> RunAll:
    """Return the function that runs the whole program in the calling thread."""
    from brisk.segments.frame import run_in_one, run_serially

    return run_in_one(program) or (
        lambda outputs, feeds, _options: list(run_serially(program, feeds, outputs).values())
    )


class Guard:
    """A thread that ends a run that takes too long; it sleeps while there are no runs.

    The running thread sets ``begun_ns`` before a run and 0 after it, and calls ``wake`` if
    ``is_awake`` is not set. ``control``: the run control of the running thread.
    """

    def __init__(self) -> None:
        self.begun_ns = 0
        self.control: RunControl | None = None
        self._clock = time.CLOCK_MONOTONIC  # until the running thread gives its processor time
        self.is_awake = False
        self.has_ended_it = False
        self._busy = threading.Event()
        self._closing = False
        threading.Thread(target=self._watch, name="brisk-guard", daemon=True).start()

    def watch_own(self, control: RunControl) -> None:
        """Watch the runs of the calling thread."""
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self.control = control

    def wake(self) -> None:
        self.is_awake = True
        self._busy.set()

    def close(self) -> None:
        self._closing = True
        self._busy.set()

    def _watch(self) -> None:
        quiet, pause_s = 0, LOOK_S
        seen_ns = seen_at_ns = 0
        while self._busy.wait() and not self.has_ended_it:
            if self._closing and not self.begun_ns:  # a run under way is watched to its end
                return
            time.sleep(pause_s)
            pause_s = LOOK_S
            begun_ns, control = self.begun_ns, self.control
            if begun_ns and control is not None:
                quiet, age_ns = 0, time.monotonic_ns() - begun_ns
                computed_ns = time.clock_gettime_ns(self._clock)
                if begun_ns != seen_ns:
                    seen_ns, seen_at_ns = begun_ns, computed_ns
                left_ns = COMPUTES_NS - (computed_ns - seen_at_ns)
                if age_ns >= HANGS_NS or (age_ns >= TOO_LONG_NS and left_ns <= 0):
                    # if the run ends just now, the next one fails, and the worker computes it
                    self.has_ended_it = True
                    control.end()
                elif age_ns >= SUSPECT_NS:
                    pause_s = min(LOOK_S, max(TOO_LONG_NS - age_ns, left_ns) / 1e9)
                continue
            quiet += 1
            if quiet == _QUIET_LOOKS:
                quiet = 0
                self._busy.clear()
                self.is_awake = False
                if self.begun_ns or self._closing:
                    self.wake()  # it was set before the line above
