"""Policies: how a device is shared between classes, chosen by name.

Pure functions of a snapshot: no thread, device or clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum

from brisk.errors import InvalidConfigurationError
from brisk.scheduling.job import Job, JobClass, more_urgent, most_urgent_first


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


# Best-effort layers pad what real-time work leaves (REEF, 5: dynamic kernel padding).
#
# REEF's two rules (5.2), for processors that the kernel hands over in the middle of a layer:
#
# 1. A best-effort layer must be shorter than what is left of the real-time run. A GPU cannot take
# it back once it runs, so REEF compares kernel with kernel. Here a longer one would cost the
# real-time run no processor, but caches and memory bandwidth until it ends: one that ends with
# the run cannot spill over into the next.
# 2. It must use only what real-time work leaves: processors that its run does not compute with.
# Where it computes with all of them, what is left are the gaps in which its threads wait for
# each other. The kernel fills these at the price of the caches, which only a measurement
# tells: the run must not take longer beside best-effort work than the limit allows, which is
# one for requests and so the lower for a run the more of them wait for each other. The same
# goes for free processors, since caches and memory are shared. Some runs are trials, alone or
# beside best-effort work: their times are that measurement.


def fits_in(snapshot: Snapshot) -> bool:
    """What is not known yet may run, if there are processors: that is how it becomes known."""
    realtime, layer_ns = snapshot.realtime, snapshot.layer_ns
    if realtime.trial is not PaddingTrial.NONE:
        return realtime.trial is PaddingTrial.BESIDE
    if (
        realtime.end_ns is not None
        and layer_ns is not None
        and snapshot.now_ns + layer_ns > realtime.end_ns  # rule 1
    ):
        return False
    if realtime.slowdown is None:  # rule 2
        return realtime.threads < snapshot.processors
    return realtime.slowdown <= run_slowdown(snapshot.limits, realtime.load)


POLICIES: Mapping[str, Policy] = {
    policy.name: policy
    for policy in (
        Policy("padded", more_urgent, fits_in, separates=True, stands_back=True),
        # Real-time work has the device to itself the moment it comes (REEF without padding, 4).
        Policy("preemptive", more_urgent, never, separates=True, stands_back=True),
        Policy("deadline", is_due_sooner, has_time_to_spare, separates=True, stands_back=True),
        # One job at a time, the most urgent first, each to its end (Clockwork; REEF, 2.2 and 7.1).
        Policy("sequential", never, always, separates=False, stands_back=False),
        # No control: best-effort work is the equal of real-time work (REEF, 2.2: GPU streams).
        Policy("shared", never, always, separates=True, stands_back=False),
    )
}
DEFAULT_POLICY = "padded"


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
