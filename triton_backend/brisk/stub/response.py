"""The way back of one request: exactly one final response, then nothing more is touched."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import triton_python_backend_utils as pb_utils

from brisk.errors import BriskError
from brisk.protocol.records import Result
from brisk.stub.runtime_client.pending import OutputReader, Reply
from brisk.stub.tensors import make_output
from brisk.telemetry.statistics import RequestAccount

# Brisk's errors as Triton's: the one place where they are mapped.

_CODES = {
    "invalid_model": "INVALID_ARG",
    "unsupported_operator": "UNSUPPORTED",
    "invalid_configuration": "INVALID_ARG",
    "invalid_request": "INVALID_ARG",
    "not_loaded": "NOT_FOUND",
    "unavailable": "UNAVAILABLE",
    "cancelled": "CANCELLED",
}
"""Triton error code by the code of each class in ``brisk.errors``; any other is INTERNAL."""


def _failed(error: Exception) -> Any:
    """A response with the fitting error; INTERNAL for anything unforeseen."""
    code, text = "INTERNAL", f"{type(error).__name__}: {error}"
    if isinstance(error, BriskError):
        code, text = _CODES.get(error.code, code), str(error)
    made = pb_utils.TritonError(text, getattr(pb_utils.TritonError, code))
    return pb_utils.InferenceResponse(output_tensors=[], error=made)


EXIT_PARAMETER = "brisk_exit"
"""Of a response: who answered, where a learned cache did; where the server has such parameters."""

_FINAL = 1
"""TRITONSERVER_RESPONSE_COMPLETE_FINAL of Triton's C interface. Triton's module has it, too, but
would be run for it."""


class TritonReply(Reply):
    """Answers through the request's response sender, or to ``execute`` while that waits for it.

    The lock makes the answer and a look at the request's cancellation exclude each other: after
    the final response Triton may have freed the request.
    """

    def __init__(
        self,
        request: Any,
        account: RequestAccount,
        learn: Callable[[int], None],
        job_class: str,
        created_ns: int,
        ones: Mapping[str, tuple[int, ...]],
        *,
        is_awaited: bool,
    ) -> None:
        """``learn`` is told how long the answer took, in ns, before it is sent.

        ``job_class``: the entry's, until the request is known to have one of its own.

        ``ones``: by output, the shape in which the entry has a value without sizes.

        ``is_awaited``: ``execute`` will call ``wait``. Otherwise the sender is taken here, so that
        from now on nothing may be raised to Triton.
        """
        self._request = request
        self._account = account
        self._learn = learn
        self._ones = ones
        self.job_class = job_class
        self._response: Any = None
        self._waiting: threading.Lock | None = None
        self._sender: Any = None
        if is_awaited:
            self._waiting = threading.Lock()
            self._waiting.acquire()
        else:
            self._sender = request.get_response_sender()
        self._lock = threading.Lock()
        self._is_answered = False
        self.created_ns = created_ns

    def has_answered(self) -> bool:
        return self._is_answered

    def wait(self, timeout_s: float) -> Any:
        """The response, for ``execute`` to return; None where it will go through the sender.

        Called once, and only on a reply that is awaited.
        """
        assert self._waiting is not None
        if not self._waiting.acquire(timeout=timeout_s):
            with self._lock:
                if not self._is_answered:
                    self._sender = self._request.get_response_sender()
                    self._waiting = None
        response, self._response = self._response, None
        return response

    def is_cancelled(self) -> bool:
        """Whether the client has given the request up; False once it is answered."""
        with self._lock:
            return not self._is_answered and bool(self._request.is_cancelled())

    def succeed(self, result: Result, read: OutputReader) -> None:
        form, memory = result.form, map(read, result.regions)
        if self._waiting is not None:
            # execute's caller reads it when the memory may have been given back
            memory = map(memoryview, map(bytearray, memory))
        try:
            ones = (self._ones.get(each.name, ()) for each in form.outputs)
            outputs = list(map(make_output, form.outputs, memory, ones))
            response = pb_utils.InferenceResponse(outputs, **_parameters(form.exits))
        except Exception as error:  # noqa: BLE001  # the request must be answered, whatever it is
            self.fail(error)
        else:
            self._learn(time.monotonic_ns() - self.created_ns)
            self._send(response)
            took_ns = time.monotonic_ns() - self.created_ns
            self._account.succeeded(self.job_class, took_ns, result.queue_ns, result.execution_ns)

    def fail(self, error: Exception) -> None:
        self._account.failed(self.job_class, error)
        self._send(_failed(error))

    def _send(self, response: Any) -> None:
        with self._lock:
            if self._is_answered:
                return
            self._is_answered = True
            if self._waiting is not None:
                self._response = response
                self._request = None
                self._waiting.release()
                return
            try:
                self._sender.send(response, flags=_FINAL)
            except Exception as error:  # noqa: BLE001  # Triton refused the response itself
                self._apologise(error)
            self._request = self._sender = None

    def _apologise(self, error: Exception) -> None:
        """Say instead why there is no answer; if that is refused too, at least the log knows."""
        try:
            self._sender.send(_failed(error), flags=_FINAL)
        except Exception as second:  # noqa: BLE001  # the receiver's thread must go on
            pb_utils.Logger.log_error(f"brisk: a response could not be sent: {error}; {second}")


def send_nothing(request: Any) -> None:
    """Answer a request whose answer nobody reads."""
    request.get_response_sender().send(pb_utils.InferenceResponse([]), flags=_FINAL)


def _parameters(exits: str) -> dict[str, Any]:
    """More arguments of a response: its parameters, which a Triton before 25.02 has not."""
    if not exits or not hasattr(pb_utils.InferenceResponse, "parameters"):
        return {}
    return {"parameters": {EXIT_PARAMETER: exits}}


# Clients that have gone: Triton tells only who asks, and asking costs a round trip.

POLL_INTERVAL_S = 0.05
MINIMUM_AGE_NS = 50_000_000
"""Requests answered sooner than this are never asked about."""

BUDGET_NS = 1_000_000
"""For asking, of each interval: some ten requests. With 512 in flight to each of ten models,
asking about all of them took a whole processor."""


class CancellationWatcher:
    """A thread that asks about the requests in flight in turn, and sleeps while there is none."""

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
