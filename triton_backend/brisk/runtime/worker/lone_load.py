"""A load that has ended a worker: done again while no request is computed.

Whatever runs when a worker dies is blamed for it, and a request that was there twice is answered
with an error. So that a model that crashes ONNX Runtime costs its own load and nothing else, its
second load and those after it begin when no run is on the stack, and none begins beside them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from brisk.segments.table import LayerTable

LONGEST_S = 30.0
"""A load that takes longer goes on beside requests: others are not kept waiting for ever."""


_LOOK_S = 0.002


class LoneLoad:
    """``is_wanted`` and ``grant`` are the worker's main thread's, the others the load lane's.

    ``wake``: called when runs may begin again.
    """

    def __init__(
        self,
        wake: Callable[[], None],
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._wake = wake
        self._clock_s = clock_s
        self._sleep = sleep
        self._until_s: float | None = None
        self._has_lanes: Callable[[], bool] | None = None
        self._granted = threading.Event()

    @property
    def is_wanted(self) -> bool:
        """Whether no run may begin."""
        until_s, has_lanes = self._until_s, self._has_lanes
        if until_s is None or self._clock_s() >= until_s:
            return False
        return has_lanes is None or has_lanes()

    def grant(self) -> None:
        """No run is on the stack, and none begins while ``is_wanted``."""
        self._granted.set()

    def enter(self) -> None:
        """Block until nothing runs, for LONGEST_S at most; ``leave`` or ``go_on_in`` must follow.

        The load before may have lanes at work yet. They are waited for as long: the two would be
        blamed together for a worker that one of them ends.
        """
        while self.is_wanted:
            self._sleep(_LOOK_S)
        self._granted.clear()
        self._has_lanes = None
        self._until_s = self._clock_s() + LONGEST_S
        self._wake()
        self._granted.wait(LONGEST_S)

    def go_on_in(self, table: LayerTable[Any]) -> None:
        """The lanes of ``table`` do the rest of the load, which ends with them."""
        self._has_lanes = lambda: table.is_loading
        table.when_loaded(self._wake)

    def leave(self) -> None:
        """The load has ended without lanes."""
        self._until_s = None
        self._wake()
