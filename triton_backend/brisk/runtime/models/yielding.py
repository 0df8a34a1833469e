"""How loads, and what follows them, give way to requests.

Each class has methods that the worker's main thread calls, to say what it does, and others that
threads of loads call, to wait.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from brisk.scheduling.job import JobClass
from brisk.segments.table import LayerTable

if TYPE_CHECKING:
    from brisk.runtime.worker.batch import Run

LONGEST_YIELD_S = 0.05
"""That one layer of a load waits for real-time requests."""

LONGEST_WAIT_S = 1.0
"""How long work that nobody waits for is put off; then it is done beside requests."""

CALM_S = 0.05
"""Without a request for so long, none follows at once: more than a client takes between two."""

LONGEST_ALONE_S = 30.0
"""A load that takes longer goes on beside requests: others are not kept waiting for ever."""

_YIELD_LOOK_S = 0.001
_LOOK_S = 0.002


class Yielding:
    """Loads wait while a real-time request of another model computes, and work that nobody waits
    for until it disturbs no request.

    A load beside a request takes processor time, memory bandwidth and, in its Python parts, the
    interpreter's lock. So its lanes stop between two layers, for a bounded time each, so that a
    load ends however many requests there are. ``attend`` is the worker's main thread's, all else
    any other thread's.
    """

    def __init__(
        self,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.is_serving = False
        self._urgent: LayerTable[Any] | None = None
        """Of the real-time run in progress; None: there is none, or it is a pipeline's."""
        self._served_s = -CALM_S
        self._clock_s = clock_s
        self._sleep = sleep

    def attend(self, runs: Sequence[Run]) -> None:
        """Called before and after each stretch of computing. ``runs``: those in progress, the
        last one computes.
        """
        if self.is_serving and not runs:
            self._served_s = self._clock_s()
        self.is_serving = bool(runs)
        is_urgent = runs and runs[-1].job_class is JobClass.REALTIME
        self._urgent = runs[-1].session.table if is_urgent else None

    def give_way(self, table: LayerTable[Any]) -> None:
        """Called by a lane of ``table`` before each layer. A run's own layers do not wait."""
        until_s = self._clock_s() + LONGEST_YIELD_S
        while self._urgent not in (None, table) and self._clock_s() < until_s:
            if table.is_closed:
                return
            self._sleep(_YIELD_LOOK_S)

    def expect(self) -> float:
        """A model has just been loaded, so a request is likely to come at once. How long what
        follows the load should wait for calm, a time of the clock.
        """
        self._served_s = self._clock_s()
        return self._served_s + LONGEST_WAIT_S

    def await_gap(self, until_s: float) -> None:
        """Block until no request is computed, or until a time of the clock."""
        while self.is_serving and self._clock_s() < until_s:
            self._sleep(_LOOK_S)

    def pause(self, longest_s: float) -> None:
        """``await_gap`` for so long at most."""
        self.await_gap(self._clock_s() + longest_s)

    def await_calm(self, until_s: float) -> None:
        """Block until none has been for CALM_S, or until a time of the clock."""
        while (
            self.is_serving or self._clock_s() - self._served_s < CALM_S
        ) and self._clock_s() < until_s:
            self._sleep(CALM_S)  # seldom: each look takes the interpreter's lock from a request


class LoneLoad:
    """A load that has ended a worker: done again while no request is computed.

    Whatever runs when a worker dies is blamed for it, and a request that was there twice is
    answered with an error. So that a model that crashes ONNX Runtime costs its own load and
    nothing else, its second load and those after it begin when no run is on the stack, and none
    begins beside them.

    ``is_wanted`` and ``grant`` are the worker's main thread's, the others the load lane's.
    ``wake``: called when runs may begin again.
    """

    def __init__(
        self, wake: Callable[[], None], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._wake = wake
        self._clock_s = clock_s
        self._until_s: float | None = None
        self._table: LayerTable[Any] | None = None
        """Whose lanes do the rest of the load."""
        self._granted = threading.Event()

    @property
    def is_wanted(self) -> bool:
        """Whether no run may begin."""
        until_s, table = self._until_s, self._table
        if until_s is None or self._clock_s() >= until_s:
            return False
        return table is None or table.is_loading

    def grant(self) -> None:
        """No run is on the stack, and none begins while ``is_wanted``."""
        self._granted.set()

    def enter(self) -> None:
        """Block until nothing runs, for LONGEST_ALONE_S at most; ``go_on_in`` or ``leave`` must
        follow.

        The load before may have lanes at work yet. They are waited for as long: the two would be
        blamed together for a worker that one of them ends.
        """
        while self.is_wanted:
            time.sleep(_LOOK_S)
        # Cleared before it is wanted: the main thread grants only what it sees wanted.
        self._granted.clear()
        self._table = None
        self._until_s = self._clock_s() + LONGEST_ALONE_S
        self._wake()
        self._granted.wait(LONGEST_ALONE_S)

    def go_on_in(self, table: LayerTable[Any]) -> None:
        """The lanes of ``table`` do the rest of the load, which ends with them."""
        self._table = table
        table.when_loaded(self._wake)

    def leave(self) -> None:
        """The load has ended without lanes."""
        self._until_s = None
        self._wake()
