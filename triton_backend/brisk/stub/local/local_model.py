"""A small model that its stub computes itself: requests do not cross to the worker and back.

The worker offers it (``brisk.runtime.requests.offering``) once the model is warm, often used and
quick: then the way to the worker costs several times what a small network does. The stub maps the
same prepared form, so that weights which are not packed are in memory once, and runs the same
segments by the same code.

Urgent or large requests, and all while the worker has real-time work, still go to the worker. If
one run takes much too long, all later requests go there.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from brisk.protocol.gate_page import GateView
from brisk.protocol.records import ComputedInStub, ComputeInStub, LoadModel
from brisk.stub.config.entry import Entry
from brisk.stub.config.parameters import (
    NORMAL,
    request_agreement,
    request_class,
    requested_outputs,
)
from brisk.stub.local.crowd import Crowd
from brisk.stub.local.local_program import SHORT_NS, LocalProgram, LocalPrograms
from brisk.stub.local.run_guard import COMPUTES_NS, Guard
from brisk.telemetry.statistics import RequestAccount

AWAY_NS = 2_000_000_000
"""The time for which a worker computes what takes long after real-time work was seen: it may come
again and again, and what a run that gives way has computed is lost."""

SURPRISE = 8
"""How many times as long as expected a run may compute before it is ended as one that takes too
long: its rows may be twice as many as those of the runs that it is judged by."""

TELL_NS = 1_000_000_000
"""The least time between two reports to the worker."""

LEARNT = 15
"""The mask of answers' numbers: durations are learned from answers whose number has none of these
bits set. Learning from each costs more than all else that is done for a request."""


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
        in_flight: Callable[[], int],
    ) -> None:
        """Map the prepared form. ``gate``: a descriptor, closed here. ``tell``: sends to the
        worker. ``in_flight``: counts the requests that the worker has.

        Raises BriskError if the prepared form cannot be used in this process, OSError if it or the
        gate cannot be mapped.
        """
        try:
            self._gate = GateView(gate)
        finally:
            os.close(gate)
        self._realtime = self._gate.words
        self._programs = LocalPrograms(model, offer)
        self._options: Any = None
        """The ``RunOptions`` of Triton's thread; None before its first run."""
        shapes = [each.type.shape for each in self._programs.current.program.plan.outputs]
        self._has_scalars = any(not shape for shape in shapes)
        self._joins = model.batching
        self._crowd = Crowd(in_flight, offer.threads)
        self._model = offer.model
        self._tell = tell
        self._answered = self._told = self._away_until_ns = 0
        self._tells_at_ns = time.monotonic_ns() + TELL_NS
        self._guard = Guard(self._gate)
        self.is_given_up = False

    def expect(self, row_ns: int) -> None:
        """Expect ``row_ns`` a row, and forget what was learned. Any thread may call this."""
        self._programs.expect(row_ns)

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
            self._away_until_ns = begun_ns + AWAY_NS
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
            program = self._programs.current
            expected_ns = program.expected_ns.get(rows.bit_length())
            is_unusual = expected_ns is None or expected_ns > SHORT_NS or rows > program.most_rows
            guard.gives_way = False
            if is_unusual and not self._takes(program, rows, requests, begun_ns):
                return None
            learns = expected_ns is None or program.is_watched or not self._answered & LEARNT
            outputs = entry.outputs
            if len(outputs) > 1:
                outputs = requested_outputs(request, outputs)
            options = self._options
            if options is None:
                options = self._begin()
            computed_ns = time.thread_time_ns() if learns else 0
            guard.begun_ns = begun_ns
            if not guard.is_awake:
                guard.wake()
            values = program.run(outputs, feeds, options)
            guard.begun_ns = 0
            if learns:
                self._learn(program, rows, begun_ns, computed_ns)
            if self._has_scalars:
                values = _as_configured(outputs, values, entry)
            response = pb_utils.InferenceResponse(list(map(pb_utils.Tensor, outputs, values)))
        except Exception:  # noqa: BLE001  # the worker's path computes it, and reports errors
            self._clean_up(account)
            return None
        ended_ns = time.monotonic_ns()
        account.uncounted.append((NORMAL, ended_ns - begun_ns, 1))
        self._answered += 1
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
        program = self._programs.current
        is_complete = len(counts) == len(requests)
        if not is_complete or not self._takes(program, total, requests, begun_ns):
            return None
        feeds = {name: np.concatenate(each, casting="no") for name, each in columns.items()}
        options = self._options or self._begin()
        computed_ns = time.thread_time_ns()
        self._guard.begun_ns = begun_ns
        if not self._guard.is_awake:
            self._guard.wake()
        values = program.run(outputs, feeds, options)
        self._guard.begun_ns = 0
        self._learn(program, total, begun_ns, computed_ns)
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
        if ended_ns >= self._tells_at_ns:
            self._report(account, ended_ns)
        return responses

    def _begin(self) -> Any:
        """Create the ``RunOptions`` of Triton's thread before its first run, and return them."""
        from brisk.segments.frame import control

        own = control()
        own.renew()  # an earlier offer's run may have been ended
        self._options = own.options(shrinks_arena=self._programs.current.shrinks_arena)
        self._guard.watch_own(own)
        return self._options

    def _clean_up(self, account: RequestAccount) -> None:
        """Clean up after a failed run. If it gave way, leave long ones to the worker for a while;
        if it took too long, give the model up, so that the worker takes it back."""
        guard, now_ns = self._guard, time.monotonic_ns()
        guard.begun_ns = 0
        if guard.control is not None and guard.control.has_ended:
            guard.control.renew()
            self._options = None
        if self.is_given_up:
            return
        if guard.has_given_way:
            guard.has_given_way = False
            account.gave_way()
            self._away_until_ns = now_ns + AWAY_NS
        if guard.has_ended_it:
            self.is_given_up = True
            self._report(account, now_ns, gives_up=True)

    def _takes(
        self, program: LocalProgram, rows: int, requests: Sequence[Any], begun_ns: int
    ) -> bool:
        """Whether to compute a run of so many rows in this process. A long one has no time-out to
        keep, gives way to real-time work, and has no others of the model waiting for it that the
        worker would compute at the same time."""
        guard = self._guard
        guard.gives_way = False
        if not program.takes(rows):
            return False
        expected_ns = program.estimated_ns(rows)
        if expected_ns <= SHORT_NS:
            return True
        guard.watches_gate = guard.gives_way = self._gate.can_wait
        guard.computes_ns = max(COMPUTES_NS, int(SURPRISE * expected_ns))
        if not self._gate.can_wait or begun_ns < self._away_until_ns:
            return False
        if any(request.timeout() for request in requests):
            return False
        has_all_processors = program.threads == self._programs.most_threads > 1
        return self._joins or not has_all_processors or not self._crowd.sends_on(begun_ns)

    def _learn(self, program: LocalProgram, rows: int, begun_ns: int, computed_ns: int) -> None:
        """Learn of a run that ends now. ``computed_ns``: the thread's processor time before it."""
        taken_ns = time.monotonic_ns() - begun_ns
        self._programs.learn(program, rows, taken_ns, time.thread_time_ns() - computed_ns)

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
