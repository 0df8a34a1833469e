"""A device as the worker uses it: streams by urgency, and a device thread that calls ONNX Runtime.

The worker's main thread launches captured runs and checks whether they are done, both of which
return at once. The device thread does all that takes long or waits (runs of sessions, capturing,
freeing). It is one thread, since ONNX Runtime keeps handles of CUDA's libraries for each thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from brisk.gpu.driver import Context, Stream


class LaneWork:
    """Work that was queued for the device thread, and its result."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work: Callable[[], Any] | None = work
        self._ended = threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        return self._ended.is_set()

    def wait(self, timeout_s: float | None = None) -> bool:
        return self._ended.wait(timeout_s)

    def result(self) -> Any:
        """Return the result of the work, waiting for it. Raises what the work raised."""
        self._ended.wait()
        if self._error is not None:
            raise self._error
        return self._value

    def perform(self) -> None:
        work, self._work = self._work, None
        assert work is not None
        try:
            self._value = work()
        except BaseException as error:  # noqa: BLE001  # ``result`` raises it
            self._error = error
        self._ended.set()


class Device:
    """A device with ``streams`` for real-time, normal and best-effort work, the most urgent
    first."""

    def __init__(self, context: Context) -> None:
        self.context = context
        least, most = context.priorities
        urgencies = most, min(most // 2, least), least
        self.streams: tuple[Stream, ...] = tuple(map(context.stream, urgencies))
        self._spare: list[Stream] = []
        self._issuing: Stream | None = None
        self._work: SimpleQueue[LaneWork] = SimpleQueue()
        threading.Thread(target=self._serve, name="brisk-gpu", daemon=True).start()

    def borrow(self) -> Stream:
        """Return a stream of best-effort urgency for one session alone."""
        return self._spare.pop() if self._spare else self.context.stream()

    def give_back(self, stream: Stream) -> None:
        """Return ``stream`` to the pool. It stays valid: a session that is gone may still name
        it."""
        self._spare.append(stream)

    @property
    def ordinal(self) -> int:
        return self.context.device

    @property
    def stream(self) -> Stream:
        """The stream on which the main thread issues now."""
        return self._issuing or self.streams[1]

    @property
    def is_urgent(self) -> bool:
        return self._issuing is self.streams[0]

    @contextmanager
    def issuing(self, stream: Stream) -> Iterator[None]:
        """Make ``stream`` the one on which the main thread issues, while entered."""
        before, self._issuing = self._issuing, stream
        try:
            yield
        finally:
            self._issuing = before

    def perform(self, work: Callable[[], Any]) -> LaneWork:
        """Queue ``work`` for the device thread, behind earlier work."""
        ticket = LaneWork(work)
        self._work.put(ticket)
        return ticket

    def _serve(self) -> None:
        self.context.enter()
        while True:
            self._work.get().perform()
