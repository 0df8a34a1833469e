"""Loads that wait while a real-time request of another model computes.

A load beside it takes processor time, memory bandwidth and, in its Python parts, the interpreter's
lock. So its lanes stop between two layers, for a bounded time each, so that a load ends however
many requests there are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from brisk.runtime.worker.batch import Run
from brisk.scheduling.job import JobClass
from brisk.segments.table import LayerTable

LONGEST_S = 0.05
"""That one layer waits."""

_LOOK_S = 0.001


class Courtesy:
    """``attend`` is the worker's main thread's, ``give_way`` any lane's."""

    def __init__(
        self,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._urgent: LayerTable[Any] | None = None
        """Of the real-time run in progress; None: there is none, or it is a pipeline's."""
        self._clock_s = clock_s
        self._sleep = sleep

    def attend(self, runs: Sequence[Run]) -> None:
        """``runs``: those in progress, the last one computes."""
        self._urgent = None
        if runs and runs[-1].job_class is JobClass.REALTIME:
            session = runs[-1].jobs[0].payload.binding.session
            if session is not None:
                self._urgent = session.table

    def give_way(self, table: LayerTable[Any]) -> None:
        """Called by a lane of ``table`` before each layer. A run's own layers do not wait."""
        until_s = self._clock_s() + LONGEST_S
        while self._urgent not in (None, table) and self._clock_s() < until_s:
            if table.is_closed:
                return
            self._sleep(_LOOK_S)
