"""The policies for sharing a device between classes, chosen by name.

They are pure functions of a snapshot: no policy owns a thread, a device or a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from brisk.errors import InvalidConfigurationError
from brisk.scheduling.job import Job, more_urgent, most_urgent_first
from brisk.scheduling.job_class import JobClass


@dataclass(frozen=True, slots=True)
class Limits:
    """The user's bounds, each from 0 to 1."""

    share: float
    """The fraction of the time that best-effort work always gets."""
    normal_share: float = 0.0
    """The fraction of its worker's time that normal work gets."""


@dataclass(frozen=True, slots=True)
class Realtime:
    """The real-time work in flight."""

    count: int
    """The number of its requests."""
    end_ns: int | None
    """The time when it is expected to be done; None if that is unknown."""
    deadline_ns: int | None
    """The earliest of its deadlines; None if it has none."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state when a best-effort segment is about to begin."""

    now_ns: int
    realtime: Realtime
    share: float
    """The fraction of the recent time in which best-effort work ran."""
    limits: Limits


@dataclass(frozen=True, slots=True)
class Policy:
    """One way to share a device between classes."""

    name: str
    interrupts: Callable[[Job, Job], bool]
    """Whether a waiting job takes a running one's place in its worker."""
    lets_run_concurrently: Callable[[Snapshot], bool]
    """Whether a best-effort segment may begin concurrently with real-time work."""
    separates: bool
    """Whether best-effort work has a worker of its own."""
    lowers_best_effort: bool
    """Whether best-effort work runs at lower priority, only on processors left idle."""

    def takes_place(self, waiting: Job, running: Job, *, normal_is_owed: bool) -> bool:
        """Return whether a job ``interrupts`` a running one; never one owed its minimum share."""
        is_protected = normal_is_owed and running.job_class is JobClass.NORMAL
        return not is_protected and self.interrupts(waiting, running)

    def lets_run(self, snapshot: Snapshot) -> bool:
        return snapshot.realtime.count == 0 or self.lets_run_concurrently(snapshot)

    def admits(self, snapshot: Snapshot) -> bool:
        """Return whether a best-effort segment may begin: ``lets_run`` allows it, or best-effort
        work has had less than its minimum share."""
        return snapshot.share < snapshot.limits.share or self.lets_run(snapshot)


def never(*_: object) -> bool:
    return False


def always(*_: object) -> bool:
    return True


# Earliest deadline first. Best-effort work runs concurrently with real-time work that has slack.

SAFETY = 2.0
"""The multiple of the expected remainder that must fit before the deadline: concurrently with
best-effort work a run may take longer than alone."""


def is_due_sooner(waiting: Job, running: Job) -> bool:
    """Return whether the waiting job is more urgent by class, then by deadline. If neither has a
    deadline, the running one goes on."""
    return most_urgent_first(waiting)[:2] < most_urgent_first(running)[:2]


def has_time_to_spare(snapshot: Snapshot) -> bool:
    """Return whether real-time work ends well before its deadline. Without a deadline, or with an
    unknown remainder, it runs alone."""
    realtime = snapshot.realtime
    if realtime.deadline_ns is None or realtime.end_ns is None:
        return False
    remainder_ns = max(0, realtime.end_ns - snapshot.now_ns)
    return snapshot.now_ns + SAFETY * remainder_ns <= realtime.deadline_ns


POLICIES: Mapping[str, Policy] = {
    policy.name: policy
    for policy in (
        # Real-time work gets the whole device as soon as it comes (REEF without padding, 4).
        Policy("preemptive", more_urgent, never, separates=True, lowers_best_effort=True),
        Policy(
            "deadline", is_due_sooner, has_time_to_spare, separates=True, lowers_best_effort=True
        ),
        # One job at a time, the most urgent first, each to its end (Clockwork; REEF, 2.2 and 7.1).
        Policy("sequential", never, always, separates=False, lowers_best_effort=False),
        # No control: best-effort and real-time work are equals (REEF, 2.2: GPU streams).
        Policy("shared", never, always, separates=True, lowers_best_effort=False),
    )
}
DEFAULT_POLICY = "preemptive"


def find_policy(name: str) -> Policy:
    """Return the policy of that name. Raises InvalidConfigurationError, which names the nearest
    policy, if there is none."""
    policy = POLICIES.get(name)
    if policy is None:
        import difflib

        nearest = difflib.get_close_matches(name.lower(), POLICIES, n=1, cutoff=0.0)
        raise InvalidConfigurationError(
            f"unknown policy '{name}', did you mean '{nearest[0]}'? "
            f"There are {', '.join(POLICIES)}"
        )
    return policy
