"""The last things that went wrong in this process, in words."""

from __future__ import annotations

import threading
import time
from collections import deque

KEPT = 100
MAX_CHARACTERS = 300


class Incidents:
    """The newest ``KEPT``; any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: deque[tuple[int, str]] = deque(maxlen=KEPT)

    def note(self, what: str) -> None:
        """Keep the first ``MAX_CHARACTERS`` of it."""
        with self._lock:
            self._kept.append((time.monotonic_ns(), what[:MAX_CHARACTERS]))

    def newest(self, count: int) -> list[tuple[int, str]]:
        """At most ``count`` as time (CLOCK_MONOTONIC, ns) and text, the newest first."""
        with self._lock:
            kept = list(self._kept)
        return kept[: -count - 1 : -1] if count > 0 else []


INCIDENTS = Incidents()
"""This process's own."""
