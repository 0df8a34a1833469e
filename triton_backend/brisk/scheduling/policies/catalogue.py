"""The policies: whom a run interrupts, and when a best-effort layer may begin."""

from __future__ import annotations

from typing import Any

from brisk.scheduling.job import Job
from brisk.scheduling.policies.base import (
    PaddingTrial,
    Policy,
    Snapshot,
    always,
    never,
    run_slowdown,
)
from brisk.scheduling.policy import more_urgent, most_urgent_first

# Real-time work has the device to itself the moment it comes (REEF without padding, 4).


def nothing_else_runs(snapshot: Snapshot) -> bool:
    return snapshot.realtime.count == 0


PREEMPTIVE = Policy("preemptive", more_urgent, nothing_else_runs, separates=True, stands_back=True)


# One job at a time, the most urgent first, each to its end (Clockwork; REEF, 2.2 and 7.1).
#
# A real-time job has the device to itself once it runs, and waits until what runs has ended.

SEQUENTIAL = Policy("sequential", never, always, separates=False, stands_back=False)


# No control: best-effort work is the equal of real-time work (REEF, 2.2: GPU streams).

SHARED = Policy("shared", never, always, separates=True, stands_back=False)


# Earliest deadline first; best-effort work runs beside real-time work that has time to spare.
#
# Within a class, a job with an earlier deadline interrupts one with a later one.

SAFETY = 2.0
"""Times the expected remainder that must fit before the deadline: beside best-effort work a run
may take longer than alone."""


def is_due_sooner(waiting: Job[Any], running: Job[Any]) -> bool:
    """By class, then by deadline; of two without a deadline the one that runs goes on."""
    return more_urgent(waiting, running) or (
        waiting.job_class is running.job_class
        and most_urgent_first(waiting)[:2] < most_urgent_first(running)[:2]
    )


def has_time_to_spare(snapshot: Snapshot) -> bool:
    """Without a deadline, or where the remainder is not known, real-time work runs alone."""
    realtime = snapshot.realtime
    if realtime.count == 0:
        return True
    if realtime.deadline_ns is None or realtime.end_ns is None:
        return False
    remainder_ns = max(0, realtime.end_ns - snapshot.now_ns)
    return snapshot.now_ns + SAFETY * remainder_ns <= realtime.deadline_ns


DEADLINE = Policy("deadline", is_due_sooner, has_time_to_spare, separates=True, stands_back=True)


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
    realtime = snapshot.realtime
    if realtime.count == 0:
        return True
    if realtime.trial is not PaddingTrial.NONE:
        return realtime.trial is PaddingTrial.BESIDE
    return _ends_with_it(snapshot) and _takes_what_is_left(snapshot)


def _ends_with_it(snapshot: Snapshot) -> bool:
    """Rule 1. What is not known yet may run: that is how it becomes known."""
    end_ns, layer_ns = snapshot.realtime.end_ns, snapshot.layer_ns
    if end_ns is None or layer_ns is None:
        return True
    return snapshot.now_ns + layer_ns <= end_ns


def _takes_what_is_left(snapshot: Snapshot) -> bool:
    """Rule 2. With no processor left, only what has been measured to do no harm may run."""
    realtime = snapshot.realtime
    if realtime.slowdown is None:
        return realtime.threads < snapshot.processors
    return realtime.slowdown <= run_slowdown(snapshot.limits, realtime.load)


PADDED = Policy("padded", more_urgent, fits_in, separates=True, stands_back=True)
