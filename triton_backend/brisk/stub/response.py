"""The responses to requests: each gets exactly one final response, then is not touched again."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import triton_python_backend_utils as pb_utils

from brisk.errors import (
    BriskError,
    CancelledError,
    InternalError,
    UnavailableError,
    as_utf8,
)
from brisk.protocol.records import Result, ResultForm, TensorForm
from brisk.stub.runtime_client.pending import OutputReader, Reply
from brisk.stub.tensors import make_output
from brisk.telemetry.statistics import RequestAccount

# Brisk's errors as Triton's: the only place where they are mapped.

_CODES = {
    "invalid_request": "INVALID_ARG",
    "not_loaded": "NOT_FOUND",
    "unavailable": "UNAVAILABLE",
    "cancelled": "CANCELLED",
}
"""Triton's error codes by the code of each class in ``brisk.errors``; any other is INTERNAL, those
of an invalid model or configuration included: no request can correct these."""


def failed_response(error: Exception) -> Any:
    """Return a response with the matching Triton error; INTERNAL for an unexpected one."""
    code, text = "INTERNAL", f"{type(error).__name__}: {error}"
    if isinstance(error, BriskError):
        code, text = _CODES.get(error.code, code), str(error)
    triton_error = pb_utils.TritonError(as_utf8(text), getattr(pb_utils.TritonError, code))
    return pb_utils.InferenceResponse(output_tensors=[], error=triton_error)


EXIT_PARAMETER = "brisk_exit"
"""The response parameter that names the exit that answered, if one did and the server has response
parameters."""

_FINAL = 1
"""TRITONSERVER_RESPONSE_COMPLETE_FINAL of Triton's C interface. Triton's Python module has it,
too, but would have to be run for it."""


class Counted(NamedTuple):
    """The receivers of an answer's figures.

    ``account`` counts each answer. ``learn`` gets its time in ns, before it is sent. ``learn_run``
    gets its run's time in ns and rows. ``stop_joining`` is called if requests should not be
    joined: learned caches have answered, or outputs have no rows of one size.
    """

    account: RequestAccount
    learn: Callable[[int], None]
    learn_run: Callable[[int, int], None]
    stop_joining: Callable[[], None]


class UnevenOutputError(Exception):
    """An output's rows are not those of the batch, so it cannot be divided among requests."""


class TritonReply(Reply):
    """The reply to a group of requests: through their response senders, or to ``execute`` while it
    waits.

    The lock excludes checks of cancellation while the reply is sent: after the final response
    Triton may have freed a request.
    """

    def __init__(
        self,
        requests: Sequence[Any],
        rows: Sequence[int],
        counted: Counted,
        job_class: str,
        created_ns: int,
        ones: Mapping[str, tuple[int, ...]],
        take_apart: Callable[[Sequence[Any], int], None],
        *,
        is_awaited: bool,
    ) -> None:
        """Make the reply to a group of requests. ``rows``: each one's, if there are several.

        ``job_class``: the entry's, until the requests' own is known.

        ``ones``: by output, the shape in which the entry has a value without sizes.

        ``take_apart``: called if several requests fail as one, to send each again by itself.

        ``is_awaited``: ``execute`` will call ``wait``. Otherwise senders are taken here, after
        which no exception may reach Triton.
        """
        self._requests = requests
        self._rows = rows
        self._counted = counted
        self._ones = ones
        self._take_apart = take_apart
        self.job_class = job_class
        self._responses: list[Any] | None = None
        self._waiting: threading.Lock | None = None
        self._senders: list[Any] = []
        if is_awaited:
            self._waiting = threading.Lock()
            self._waiting.acquire()
        else:
            self._senders = [request.get_response_sender() for request in requests]
        self._lock = threading.Lock()
        self._is_answered = False
        self.created_ns = created_ns

    def has_answered(self) -> bool:
        return self._is_answered

    def wait(self, timeout_s: float) -> list[Any] | None:
        """Wait for the responses that ``execute`` returns; None if they go through the senders.

        Called once, and only on an awaited reply.
        """
        assert self._waiting is not None
        if not self._waiting.acquire(timeout=timeout_s):
            with self._lock:
                if not self._is_answered:
                    self._senders = [each.get_response_sender() for each in self._requests]
                    self._waiting = None
        responses, self._responses = self._responses, None
        return responses

    def is_cancelled(self) -> bool:
        """Whether all clients have canceled their requests; False once they are answered."""
        with self._lock:
            return not self._is_answered and all(each.is_cancelled() for each in self._requests)

    def succeed(self, result: Result, read: OutputReader) -> None:
        memory = list(map(read, result.regions))
        if self._waiting is not None:
            # execute's caller reads it when the memory may have been released
            memory = [memoryview(bytearray(each)) for each in memory]
        try:
            responses = self._make_responses(result.form, memory)
        except UnevenOutputError as error:
            self._counted.stop_joining()
            self.fail(error)
            return
        except Exception as error:  # noqa: BLE001  # the request must be answered, whatever it is
            self.fail(error)
            return
        counted = self._counted
        if result.form.exits:
            counted.stop_joining()
        counted.learn(time.monotonic_ns() - self.created_ns)
        counted.learn_run(result.execution_ns, sum(self._rows))
        lost = self._send(responses, sum(map(len, memory)))
        took_ns = time.monotonic_ns() - self.created_ns
        if sent := len(responses) - lost:
            counted.account.succeeded(
                self.job_class, took_ns, result.queue_ns, result.execution_ns, sent
            )
        for _ in range(lost):
            counted.account.failed(self.job_class, InternalError("it could not be sent"))

    def _make_responses(self, form: ResultForm, memory: Sequence[memoryview]) -> list[Any]:
        """Make one response for each request from the group's outputs. Raises UnevenOutputError if
        they cannot be divided by rows."""
        parameters = _parameters(form.exits)
        forms = form.outputs
        if len(self._requests) == 1:
            ones = (self._ones.get(each.name, ()) for each in forms)
            outputs = list(map(make_output, forms, memory, ones))
            return [pb_utils.InferenceResponse(outputs, **parameters)]
        total = sum(self._rows)
        for each in forms:
            if not each.shape or each.shape[0] != total or each.datatype == "BYTES":
                raise UnevenOutputError(f"'{each.name}' has shape {each.shape} for {total} rows")
        sizes = [len(each) // total for each in memory]
        responses, begin = [], 0
        for rows in self._rows:
            end = begin + rows
            outputs = [
                make_output(
                    TensorForm(name, kind, (rows, *shape[1:])),
                    whole[begin * size : end * size],
                    (),
                )
                for (name, kind, shape), whole, size in zip(forms, memory, sizes, strict=True)
            ]
            responses.append(pb_utils.InferenceResponse(outputs, **parameters))
            begin = end
        return responses

    def fail(self, error: Exception) -> None:
        count = len(self._requests)
        if count > 1 and not isinstance(error, (CancelledError, UnavailableError)):
            self._come_apart()  # one of them may have caused it
            return
        for _ in range(count):
            self._counted.account.failed(self.job_class, error)
        self._send([failed_response(error) for _ in range(count)])

    def _come_apart(self) -> None:
        """Send each request of the failed group by itself, and wake ``execute`` if it waits."""
        with self._lock:
            if self._is_answered:
                return
            self._is_answered = True
            requests, waiting = self._requests, self._waiting
            self._requests = self._senders = ()  # type: ignore[assignment]
        self._take_apart(requests, self.created_ns)
        if waiting is not None:
            waiting.release()

    def _send(self, responses: list[Any], size_bytes: int = 0) -> int:
        """Send the responses, whose tensors have so many bytes; return how many were lost."""
        with self._lock:
            if self._is_answered:
                return 0
            self._is_answered = True
            self._requests = ()
            if self._waiting is not None:
                self._responses = responses
                self._waiting.release()
                return 0
            lost, is_tight = 0, _is_tight(size_bytes)
            for sender, response in zip(self._senders, responses, strict=True):
                try:
                    if is_tight:
                        lost += not _send_in_two(sender, response)
                    else:
                        sender.send(response, flags=_FINAL)
                except Exception as error:  # noqa: BLE001  # Triton refused the response itself
                    lost += 1
                    _apologise(sender, error)
            self._senders = []
            return lost


# A response goes to the server by Triton's shared memory. If that has no room for it, the sender
# takes no other response: the request would never end, nor its model be unloaded.

SHARED_MEMORY = "/dev/shm"
SPARE_BYTES = 1 << 20


def _is_tight(size_bytes: int) -> bool:
    """Whether shared memory may have no room for responses of so many bytes."""
    try:
        room = os.statvfs(SHARED_MEMORY)
    except OSError:
        return False
    return room.f_bavail * room.f_frsize < 2 * size_bytes + SPARE_BYTES


def _send_in_two(sender: Any, response: Any) -> bool:
    """Send a response, then that it was the last: two round trips, but the request ends, with an
    error of Triton's own, if there is no room for the response. Return whether there was."""
    try:
        sender.send(response, flags=0)
    except Exception as error:  # noqa: BLE001  # Triton's own, of no common class
        pb_utils.Logger.log_error(f"brisk: a response could not be sent: {error}")
        sender.send(None, flags=_FINAL)
        return False
    sender.send(None, flags=_FINAL)
    return True


def _apologise(sender: Any, error: Exception) -> None:
    """Send an error in place of a response that Triton refused; if that fails too, log it."""
    try:
        sender.send(failed_response(error), flags=_FINAL)
    except Exception as second:  # noqa: BLE001  # the receiver's thread must go on
        pb_utils.Logger.log_error(f"brisk: a response could not be sent: {error}; {second}")


def send_nothing(request: Any) -> None:
    """Answer a request whose answer no client reads with an empty response."""
    request.get_response_sender().send(pb_utils.InferenceResponse([]), flags=_FINAL)


def _parameters(exits: str) -> dict[str, Any]:
    """Return further arguments of a response: its parameters; none in a Triton before 25.02, which
    lacks them."""
    if not exits or not hasattr(pb_utils.InferenceResponse, "parameters"):
        return {}
    return {"parameters": {EXIT_PARAMETER: exits}}


# Canceled requests: Triton reports cancellation only on request, which costs a round trip.

POLL_INTERVAL_S = 0.05
MINIMUM_AGE_NS = 50_000_000
"""The least age of a request that is checked for cancellation; those answered sooner never are."""

BUDGET_NS = 1_000_000
"""The time for checks in each interval: some ten requests. With 512 in flight to each of ten
models, checking all of them takes a whole processor."""


class CancellationWatcher:
    """A thread that checks requests in flight for cancellation, round-robin, and cancels them.

    It sleeps while there are none. ``cancel``: called with the request's number.
    """

    def __init__(self, cancel: Callable[[int], None]) -> None:
        self._cancel = cancel
        self._watched: dict[int, TritonReply] = {}
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="brisk-watcher", daemon=True)
        self._thread.start()

    def watch(self, number: int, reply: TritonReply) -> None:
        """Watch request ``number`` until it is answered."""
        with self._lock:
            self._watched[number] = reply
        if not self._wanted.is_set():
            self._wanted.set()

    def close(self) -> None:
        self._closing.set()
        self._wanted.set()
        self._thread.join(timeout=5.0)

    def _watch(self) -> None:
        while self._wanted.wait() and not self._closing.wait(POLL_INTERVAL_S):
            before_ns = time.monotonic_ns() - MINIMUM_AGE_NS
            with self._lock:
                self._watched = {n: r for n, r in self._watched.items() if not r.has_answered()}
                if not self._watched:
                    self._wanted.clear()
                old = [(n, r) for n, r in self._watched.items() if r.created_ns < before_ns]
            until_ns = time.monotonic_ns() + BUDGET_NS
            for number, reply in old:
                is_cancelled = reply.is_cancelled()
                with self._lock:
                    self._watched.pop(number, None)
                    if not is_cancelled:
                        self._watched[number] = reply  # behind those that were not asked about yet
                if is_cancelled:
                    self._cancel(number)
                if time.monotonic_ns() > until_ns:
                    break
