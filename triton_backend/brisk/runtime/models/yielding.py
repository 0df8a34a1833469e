"""How loads, and what follows them, give way to requests.

Threads of loads look at what the worker computes (``Activity``) and wait. Of a load that is done
alone (``LoneLoad``) the worker asks whether it may begin a run.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from brisk.runtime.memory import give_back
from brisk.runtime.sessions.session import Servable
from brisk.scheduling.job_class import JobClass
from brisk.segments.table import SegmentTable

LONGEST_YIELD_S = 0.05
"""The longest that one segment of a load waits for real-time requests."""

LONGEST_WAIT_S = 1.0
"""How long work that nobody waits for is put off; then it is done beside requests."""

CALM_S = 0.05
"""The time without a request after which none follows at once: more than a client takes between
two."""

REST = 4
"""How many times as long as work that nobody waits for requests are left alone behind it, as long
as they come: of many models loaded at once, each is finished beside the requests of all. Forty
small networks, asked one after the other, took 1.8 times as long for a second without it."""

LONGEST_ALONE_S = 30.0
"""A load that takes longer goes on beside requests: others are not kept waiting for ever."""

_YIELD_LOOK_S = 0.001
_LOOK_S = 0.002


class ActiveRun(Protocol):
    """What loads look at of a run."""

    @property
    def job_class(self) -> JobClass: ...
    @property
    def session(self) -> Servable: ...


class Activity(Protocol):
    """What a worker computes, as threads of loads look at it, without a lock: see
    ``RunsInProgress``.
    """

    @property
    def leading(self) -> Sequence[ActiveRun]: ...
    @property
    def beside(self) -> Sequence[ActiveRun]: ...
    @property
    def ended_ns(self) -> int: ...


def _is_serving(activity: Activity) -> bool:
    return bool(activity.leading or activity.beside)


class Yielding:
    """Loads wait while a real-time request of another model computes, and work that nobody waits
    for until it disturbs no request.

    A load beside a request takes processor time, memory bandwidth and, in its Python parts, the
    interpreter's lock. So its lanes stop between two segments, for a bounded time each, so that a
    load ends however many requests there are. Any thread but the worker's main thread may wait.
    """

    def __init__(
        self,
        activity: Activity,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Keep the clock. ``activity``: the worker's, whose times are of ``clock_s``."""
        self._activity = activity
        self._loaded_s = -CALM_S
        """When a model was loaded last."""
        self._clock_s = clock_s
        self._sleep = sleep

    @property
    def is_serving(self) -> bool:
        """Whether a request is computed."""
        return _is_serving(self._activity)

    @property
    def _urgent(self) -> SegmentTable[Any] | None:
        """The segments of the real-time run in progress; None: there is none, or a pipeline's."""
        activity = self._activity
        for run in (activity.leading or activity.beside)[-1:]:  # a copy: the list may change
            if run.job_class is JobClass.REALTIME:
                return run.session.table
        return None

    def give_way(self, table: SegmentTable[Any]) -> None:
        """Let a lane of ``table`` wait before a segment. A run's own segments do not wait."""
        until_s = self._clock_s() + LONGEST_YIELD_S
        while self._urgent not in (None, table) and self._clock_s() < until_s:
            if table.is_closed:
                return
            self._sleep(_YIELD_LOOK_S)

    def expect(self) -> float:
        """A model has just been loaded, so a request is likely to come at once. How long what
        follows the load should wait for calm, a time of the clock.
        """
        self._loaded_s = self._clock_s()
        return self._loaded_s + LONGEST_WAIT_S

    def await_gap(self, until_s: float) -> None:
        """Block until no request is computed, or until a time of the clock."""
        while self.is_serving and self._clock_s() < until_s:
            self._sleep(_LOOK_S)

    def pause(self, longest_s: float) -> None:
        """Call ``await_gap``, for so long at most."""
        self.await_gap(self._clock_s() + longest_s)

    def await_calm(self, until_s: float) -> None:
        """Block until none has been for CALM_S, or until a time of the clock."""
        while not self._is_calm() and self._clock_s() < until_s:
            self._sleep(CALM_S)  # seldom: each look takes the interpreter's lock from a request

    def rest(self, worked_s: float, longest_s: float) -> None:
        """Block behind so much work that nobody waits for, before more of it: until it is calm,
        for REST times as long and ``longest_s`` at most.
        """
        self.await_calm(self._clock_s() + min(REST * worked_s, longest_s))

    def _is_calm(self) -> bool:
        if self.is_serving:  # looked at first: a run leaves its time behind before it goes
            return False
        latest_s = max(self._loaded_s, self._activity.ended_ns / 1e9)
        return self._clock_s() - latest_s >= CALM_S


class LoneLoad:
    """A load that has ended a worker: done again while no request is computed.

    Whatever runs when a worker dies is blamed for it, and a request that was there twice is
    answered with an error. So that a model that crashes ONNX Runtime costs its own load and
    nothing else, its second load and those after it begin when no run is on the stack, and none
    begins beside them.

    ``is_used``, ``holds_runs`` and ``grant`` are the worker's main thread's, the others the load
    lane's.
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
        """Whether any load was ever done alone: else no run has to ask."""
        self._until_s: float | None = None
        self._table: SegmentTable[Any] | None = None
        """The table whose lanes do the rest of the load."""
        self._granted = threading.Event()

    def holds_runs(self) -> bool:
        """What the worker asks before it begins a run: whether none may begin. The load begins
        once none is in progress.
        """
        if not self.is_wanted:
            return False
        if not _is_serving(self._activity):
            self.grant()
        return True

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
        self.is_used = True
        # Cleared before it is wanted: the main thread grants only what it sees wanted.
        self._granted.clear()
        self._table = None
        self._until_s = self._clock_s() + LONGEST_ALONE_S
        self._wake()
        self._granted.wait(LONGEST_ALONE_S)

    def go_on_in(self, table: SegmentTable[Any]) -> None:
        """The lanes of ``table`` do the rest of the load, which ends with them."""
        self._table = table
        table.when_loaded(self._wake)

    def leave(self) -> None:
        """The load has ended without lanes."""
        self._until_s = None
        self._wake()


def tidy_up(yielding: Yielding, await_load: Callable[[float], bool]) -> bool:
    """Collect what is unreachable and return free memory to the system, while no request runs.

    ``await_load``: whether a load is asked for, within a time-out. Where it is, nothing is done,
    and the result is False.
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
