"""What a policy decides, and from what: pure functions, no thread, device or clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from brisk.scheduling.job import Job, JobClass


@dataclass(frozen=True, slots=True)
class Limits:
    """The user's bounds.

    ``slowdown``: how many times its time alone a real-time request may take beside best-effort
    work. ``share``: part of the time, 0 to 1, that best-effort work gets whatever happens;
    ``normal_share``: that normal work gets of its worker's.
    """

    slowdown: float
    share: float
    normal_share: float = 0.0


def run_slowdown(limits: Limits, load: float) -> float:
    """How many times its time alone a real-time run may take, where real-time work is there for
    ``load`` of the time.

    A run that takes longer keeps those behind it waiting: with requests that come at random, a
    delay of every run lengthens latencies by 1 / (1 - load) times as much, in parts.
    """
    return 1.0 + (limits.slowdown - 1.0) * (1.0 - load)


class PaddingTrial(IntEnum):
    """Whether a real-time run is one of the few by which its slowdown is measured."""

    NONE = 0
    ALONE = 1
    BESIDE = 2


@dataclass(frozen=True, slots=True)
class Realtime:
    """The real-time work in flight; ``count`` 0: there is none.

    ``end_ns``: when it is expected to be done; ``threads``: what its present run computes with;
    ``deadline_ns``: the earliest of its deadlines; ``slowdown``: measured, what its present run
    takes beside best-effort work over what it takes alone. None: not known, or none. ``trial``:
    what the present run is to measure. ``load``: the part of the recent time, 0 to 1, in which
    there was real-time work.
    """

    count: int
    end_ns: int | None
    threads: int
    deadline_ns: int | None
    slowdown: float | None
    trial: PaddingTrial
    load: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known when a best-effort layer is about to begin.

    ``layer_ns``: what it is expected to take; None: not known yet. ``share``: the part of the
    recent time in which best-effort work ran.
    """

    now_ns: int
    processors: int
    realtime: Realtime
    layer_ns: int | None
    share: float
    limits: Limits


@dataclass(frozen=True, slots=True)
class Policy:
    """One way to share a device between classes.

    ``interrupts(waiting, running)``: whether a job takes a running one's place in its worker.
    ``lets_run(snapshot)``: whether a best-effort layer may begin while real-time work is in
    flight. ``separates``: best-effort work has a worker of its own. ``stands_back``: which runs
    only on what processors others leave.
    """

    name: str
    interrupts: Callable[[Job[Any], Job[Any]], bool]
    lets_run: Callable[[Snapshot], bool]
    separates: bool
    stands_back: bool

    def takes_place(self, waiting: Job[Any], running: Job[Any], *, normal_is_owed: bool) -> bool:
        """``interrupts``, but of normal work that is owed its minimum share."""
        is_protected = normal_is_owed and running.job_class is JobClass.NORMAL
        return not is_protected and self.interrupts(waiting, running)

    def admits(self, snapshot: Snapshot) -> bool:
        """``lets_run``, unless best-effort work has had less than its minimum share."""
        return snapshot.share < snapshot.limits.share or self.lets_run(snapshot)


def never(waiting: Job[Any], running: Job[Any]) -> bool:
    """No job takes the place of a running one."""
    return False


def always(snapshot: Snapshot) -> bool:
    """Best-effort layers run beside real-time ones as they come."""
    return True
