"""A load that has ended a worker: done again while no request is computed.

Whatever runs when a worker dies is blamed for it, and a request that was there twice is answered
with an error. So that a model that crashes ONNX Runtime costs its own load and nothing else, its
second load and those after it begin when no run is on the stack, and none begins beside them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LONGEST_S = 30.0
"""A load that takes longer goes on beside requests: others are not kept waiting for ever."""


class LoneLoad:
    """``is_wanted`` and ``grant`` are the worker's main thread's, ``enter`` the load lane's.

    ``wake``: called when runs may begin again.
    """

    def __init__(
        self, wake: Callable[[], None], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._wake = wake
        self._clock_s = clock_s
        self._until_s: float | None = None
        self._granted = threading.Event()

    @property
    def is_wanted(self) -> bool:
        """Whether no run may begin."""
        until_s = self._until_s
        return until_s is not None and self._clock_s() < until_s

    def grant(self) -> None:
        """No run is on the stack, and none begins while ``is_wanted``."""
        self._granted.set()

    def enter(self) -> None:
        """Block until nothing runs, for LONGEST_S at most; ``leave`` must follow."""
        self._granted.clear()
        self._until_s = self._clock_s() + LONGEST_S
        self._wake()
        self._granted.wait(LONGEST_S)

    def leave(self) -> None:
        """The load has ended, well or not. Any thread; more than once is as good as once."""
        if self._until_s is not None:
            self._until_s = None
            self._wake()
