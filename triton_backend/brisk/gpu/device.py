"""A device as the worker uses it: streams by urgency, and a device thread that calls ONNX Runtime.

The worker's main thread launches captured runs and checks whether they are done, both of which
return at once. The device thread does all that takes long or waits (runs of sessions, capturing,
freeing). It is one thread, since ONNX Runtime keeps handles of CUDA's libraries for each thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from brisk.gpu.driver import Context, Stream


class Device:
    """A device with ``streams`` for real-time, normal and best-effort work, the most urgent
    first."""

    def __init__(self, context: Context) -> None:
        self.context = context
        least, most = context.facts.priorities
        urgencies = most, min(most // 2, least), least
        self.streams: tuple[Stream, ...] = tuple(map(context.stream, urgencies))
        self._spare: list[Stream] = []
        self._issuing: Stream | None = None
        self._work: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()
        threading.Thread(target=self._serve, name="brisk-gpu", daemon=True).start()

    def borrow(self) -> Stream:
        """Return a stream of best-effort urgency for one session alone. Any thread."""
        try:
            return self._spare.pop()
        except IndexError:
            return self.context.stream()

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

    def perform(self, work: Callable[[], Any]) -> Future[Any]:
        """Queue ``work`` for the device thread, behind earlier work."""
        ticket: Future[Any] = Future()
        self._work.put((ticket, work))
        return ticket

    def _serve(self) -> None:
        self.context.enter()
        while True:
            _perform(*self._work.get())


def _perform(ticket: Future[Any], work: Callable[[], Any]) -> None:
    try:
        ticket.set_result(work())
    except BaseException as error:  # noqa: BLE001  # ``result`` raises it
        ticket.set_exception(error)
