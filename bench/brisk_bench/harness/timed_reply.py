"""A reply to a request on a runtime connection, with the time when the answer came."""

from __future__ import annotations

import threading
import time

from brisk.errors import BriskError
from brisk.protocol.records import Result
from brisk.stub.runtime_client.pending import OutputReader, Reply

ANSWER_TIMEOUT_S = 120.0


class TimedReply(Reply):
    """A reply that notes when the answer came, keeps its bytes, then lets the client go on."""

    def __init__(self) -> None:
        self._answered = threading.Event()
        self._result: Result | None = None
        self._error: BriskError | None = None
        self.answered_ns = 0
        self.outputs = b""

    def succeed(self, result: Result, read: OutputReader) -> None:
        self.answered_ns = time.monotonic_ns()
        self._result = result
        self.outputs = b"".join(bytes(read(region)) for region in result.regions)
        self._answered.set()

    def fail(self, error: BriskError) -> None:
        self._error = error
        self._answered.set()

    def is_answered(self) -> bool:
        return self._answered.is_set()

    def wait(self) -> Result:
        """Return the answer. Raises its error, or TimeoutError if none comes."""
        if not self._answered.wait(ANSWER_TIMEOUT_S):
            raise TimeoutError(f"no answer in {ANSWER_TIMEOUT_S:g} s")
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result
