"""Earliest deadline first; best-effort work runs beside real-time work that has time to spare.

Within a class, a job with an earlier deadline interrupts one with a later one.
"""

from __future__ import annotations

from typing import Any

from brisk.scheduling.job import Job
from brisk.scheduling.policies.base import Policy, Snapshot
from brisk.scheduling.policy import more_urgent, most_urgent_first

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
