"""Policies: how a device is shared between classes, chosen by name.

Pure functions of a snapshot: no thread, device or clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from brisk.errors import InvalidConfigurationError
from brisk.scheduling.job import Job, more_urgent, most_urgent_first
from brisk.scheduling.job_class import JobClass


@dataclass(frozen=True, slots=True)
class Limits:
    """The user's bounds.

    ``share``: part of the time, 0 to 1, that best-effort work gets whatever happens;
    ``normal_share``: that normal work gets of its worker's.
    """

    share: float
    normal_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Realtime:
    """The real-time work in flight; ``count`` 0: there is none.

    ``end_ns``: when it is expected to be done; ``deadline_ns``: the earliest of its deadlines.
    None: not known, or none.
    """

    count: int
    end_ns: int | None
    deadline_ns: int | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What is known when a best-effort layer is about to begin.

    ``share``: the part of the recent time in which best-effort work ran.
    """

    now_ns: int
    realtime: Realtime
    share: float
    limits: Limits


@dataclass(frozen=True, slots=True)
class Policy:
    """One way to share a device between classes.

    ``interrupts(waiting, running)``: whether a job takes a running one's place in its worker.
    ``lets_beside(snapshot)``: whether a best-effort layer may begin beside real-time work.
    ``separates``: best-effort work has a worker of its own. ``stands_back``: which runs only on
    what processors others leave.
    """

    name: str
    interrupts: Callable[[Job, Job], bool]
    lets_beside: Callable[[Snapshot], bool]
    separates: bool
    stands_back: bool

    def takes_place(self, waiting: Job, running: Job, *, normal_is_owed: bool) -> bool:
        """``interrupts``, but of normal work that is owed its minimum share."""
        is_protected = normal_is_owed and running.job_class is JobClass.NORMAL
        return not is_protected and self.interrupts(waiting, running)

    def lets_run(self, snapshot: Snapshot) -> bool:
        return snapshot.realtime.count == 0 or self.lets_beside(snapshot)

    def admits(self, snapshot: Snapshot) -> bool:
        """``lets_run``, unless best-effort work has had less than its minimum share."""
        return snapshot.share < snapshot.limits.share or self.lets_run(snapshot)


def never(*_: object) -> bool:
    return False


def always(*_: object) -> bool:
    return True


# Earliest deadline first; best-effort work runs beside real-time work that has time to spare.

SAFETY = 2.0
"""Times the expected remainder that must fit before the deadline: beside best-effort work a run
may take longer than alone."""


def is_due_sooner(waiting: Job, running: Job) -> bool:
    """By class, then by deadline; of two without a deadline the one that runs goes on."""
    return most_urgent_first(waiting)[:2] < most_urgent_first(running)[:2]


def has_time_to_spare(snapshot: Snapshot) -> bool:
    """Without a deadline, or where the remainder is not known, real-time work runs alone."""
    realtime = snapshot.realtime
    if realtime.deadline_ns is None or realtime.end_ns is None:
        return False
    remainder_ns = max(0, realtime.end_ns - snapshot.now_ns)
    return snapshot.now_ns + SAFETY * remainder_ns <= realtime.deadline_ns


POLICIES: Mapping[str, Policy] = {
    policy.name: policy
    for policy in (
        # Real-time work has the device to itself the moment it comes (REEF without padding, 4).
        Policy("preemptive", more_urgent, never, separates=True, stands_back=True),
        Policy("deadline", is_due_sooner, has_time_to_spare, separates=True, stands_back=True),
        # One job at a time, the most urgent first, each to its end (Clockwork; REEF, 2.2 and 7.1).
        Policy("sequential", never, always, separates=False, stands_back=False),
        # No control: best-effort work is the equal of real-time work (REEF, 2.2: GPU streams).
        Policy("shared", never, always, separates=True, stands_back=False),
    )
}
DEFAULT_POLICY = "preemptive"


def find_policy(name: str) -> Policy:
    """The policy of that name; InvalidConfigurationError names the nearest where there is none."""
    policy = POLICIES.get(name)
    if policy is None:
        import difflib

        nearest = difflib.get_close_matches(name.lower(), POLICIES, n=1, cutoff=0.0)
        raise InvalidConfigurationError(
            f"unknown policy '{name}', did you mean '{nearest[0]}'? "
            f"There are {', '.join(POLICIES)}"
        )
    return policy
