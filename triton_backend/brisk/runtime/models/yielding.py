"""How loads, and the work that follows them, yield to requests.

Threads of loads look at what the worker computes (``Activity``) and wait. The worker asks a load
that is done alone (``LoneLoad``) whether it may begin a run.
"""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from brisk.runtime.memory import give_back
from brisk.runtime.sessions.session import Servable
from brisk.scheduling.job_class import JobClass
from brisk.segments.table import SegmentTable

LONGEST_YIELD_S = 0.05
"""The longest that one segment of a load waits for real-time requests."""

LONGEST_WAIT_S = 1.0
"""The longest that work that no client waits for is deferred; then it is done concurrently with
requests."""

CALM_S = 0.05
"""The idle time after which no request is expected at once: it is longer than a client takes
between two requests."""

REST = 4
"""The multiple of its duration for which requests are left alone after work that no client waits
for, while they come: each of many models loaded at once is finished concurrently with all
requests. Without it, requests to forty small networks in sequence took 1.8 times as long for a
second."""

LONGEST_ALONE_S = 30.0
"""The longest that a load runs alone; a longer one goes on concurrently with requests, which do
not wait for ever."""

_YIELD_LOOK_S = 0.001
_LOOK_S = 0.002


class ActiveRun(Protocol):
    """The part of a run that threads of loads read."""

    @property
    def job_class(self) -> JobClass: ...
    @property
    def session(self) -> Servable: ...


class Activity(Protocol):
    """The runs that a worker computes, as threads of loads read them, without a lock: see
    ``RunsInProgress``.
    """

    @property
    def leading(self) -> Sequence[ActiveRun]: ...
    @property
    def companions(self) -> Sequence[ActiveRun]: ...
    @property
    def ended_ns(self) -> int: ...


def _is_serving(activity: Activity) -> bool:
    return bool(activity.leading or activity.companions)


class Yielding:
    """Lets loads wait while a real-time request of another model computes. Work that no request
    waits for waits until it disturbs no request.

    A load that runs concurrently with a request takes processor time, memory bandwidth and, in its
    Python parts, the interpreter's lock. Its threads therefore stop between two segments, for a
    bounded time each, and a load ends however many requests there are. Any thread but the worker's
    main thread may wait.
    """

    def __init__(
        self,
        activity: Activity,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``activity``: the worker's, with times of ``clock_s``."""
        self._activity = activity
        self._loaded_s = -CALM_S
        """The time when a model was last loaded."""
        self._clock_s = clock_s
        self._sleep = sleep

    @property
    def is_serving(self) -> bool:
        """Whether a request is being computed."""
        return _is_serving(self._activity)

    @property
    def _urgent(self) -> SegmentTable[Any] | None:
        """The segments of the current real-time run; None: there is none, or it is a pipeline."""
        activity = self._activity
        for run in (activity.leading or activity.companions)[-1:]:  # a copy: the list may change
            if run.job_class is JobClass.REALTIME:
                return run.session.table
        return None

    def yield_to_urgent(self, table: SegmentTable[Any]) -> None:
        """Block a loader thread of ``table`` before a segment, unless the urgent run needs it."""
        until_s = self._clock_s() + LONGEST_YIELD_S
        while self._urgent not in (None, table) and self._clock_s() < until_s:
            if table.is_closed:
                return
            self._sleep(_YIELD_LOOK_S)

    def expect(self) -> float:
        """Note that a model has just been loaded, so that a request is likely to come at once.
        Return until when, by the clock, what follows the load should wait for an idle worker.
        """
        self._loaded_s = self._clock_s()
        return self._loaded_s + LONGEST_WAIT_S

    def await_gap(self, until_s: float) -> None:
        """Block until no request is computed, or until a time of the clock."""
        while self.is_serving and self._clock_s() < until_s:
            self._sleep(_LOOK_S)

    def pause(self, longest_s: float) -> None:
        """Block until no request is computed, for at most ``longest_s``."""
        self.await_gap(self._clock_s() + longest_s)

    def await_calm(self, until_s: float) -> None:
        """Block until the worker has been idle for CALM_S, or until a time of the clock."""
        while not self._is_calm() and self._clock_s() < until_s:
            self._sleep(CALM_S)  # long: each check takes the interpreter's lock from a request

    def rest(self, worked_s: float, longest_s: float) -> None:
        """Block after ``worked_s`` of work that no request waits for, before more of it: until
        the worker is idle, but at most for REST times as long and for ``longest_s``.
        """
        self.await_calm(self._clock_s() + min(REST * worked_s, longest_s))

    def _is_calm(self) -> bool:
        if self.is_serving:  # checked first: a run notes its time before it goes
            return False
        latest_s = max(self._loaded_s, self._activity.ended_ns / 1e9)
        return self._clock_s() - latest_s >= CALM_S


class LoneLoad:
    """A load that has crashed a worker: it is retried while no request is computed.

    A worker's death is attributed to all that runs then, and a request that was there twice is
    answered with an error. A model that crashes ONNX Runtime is to cost its own load and nothing
    else. Its second load and those after it therefore begin when no run is on the stack, and none
    begins concurrently with them.

    The worker's main thread uses ``is_used`` and ``holds_runs``, the loader thread all else.
    """

    def __init__(
        self,
        wake: Callable[[], None],
        activity: Activity,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin without a load. ``wake``: called when runs may begin again. ``activity``: the
        worker's."""
        self._wake = wake
        self._activity = activity
        self._clock_s = clock_s
        self.is_used = False
        """Whether any load was ever done alone; if not, no run has to ask."""
        self._until_s: float | None = None
        self._table: weakref.ref[SegmentTable[Any]] | None = None
        """The table whose loader threads do the rest of the load, which lives no longer by it."""
        self._granted = threading.Event()

    def holds_runs(self) -> bool:
        """Return whether no run may begin; the worker asks before it begins one. The load begins
        once no run is in progress.
        """
        if not self.is_wanted:
            return False
        if not _is_serving(self._activity):
            self._granted.set()
        return True

    @property
    def is_wanted(self) -> bool:
        """Whether no run may begin."""
        until_s, rest = self._until_s, self._table
        if until_s is None or self._clock_s() >= until_s:
            return False
        if rest is None:
            return True
        table = rest()
        return table is not None and table.is_loading and not table.is_short

    def enter(self) -> None:
        """Block until no run computes, for LONGEST_ALONE_S at most; ``go_on_in`` or ``leave`` must
        follow.

        Loader threads of the load before may still be at work. This waits for them as long: else a
        crash by one of the loads would be attributed to both.
        """
        while self.is_wanted:
            time.sleep(_LOOK_S)
        self.is_used = True
        # Cleared before it is wanted: the main thread grants only a load that it sees wanted.
        self._granted.clear()
        self._table = None
        self._until_s = self._clock_s() + LONGEST_ALONE_S
        self._wake()
        self._granted.wait(LONGEST_ALONE_S)

    def go_on_in(self, table: SegmentTable[Any]) -> None:
        """Leave the rest of the load to the loader threads of ``table``; it ends with them."""
        self._table = weakref.ref(table)
        table.when_loaded(self._wake)

    def leave(self) -> None:
        """Note that the load has ended without loader threads."""
        self._until_s = None
        self._wake()


def tidy_up(yielding: Yielding, await_load: Callable[[float], bool]) -> bool:
    """Collect what is unreachable and return free memory to the system, while no request runs.

    ``await_load``: waits, for a time-out at most, and returns whether a load is asked for. If one
    is, nothing is done. Return whether memory was returned.
    """
    until_s = time.monotonic() + LONGEST_WAIT_S
    while not await_load(_LOOK_S):
        if not yielding.is_serving or time.monotonic() > until_s:
            break
    else:
        return False
    gc.collect()
    give_back()
    return True
