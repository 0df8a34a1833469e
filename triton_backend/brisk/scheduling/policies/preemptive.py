"""Real-time work has the device to itself the moment it comes (REEF without padding, 4)."""

from __future__ import annotations

from brisk.scheduling.policies.base import Policy, Snapshot
from brisk.scheduling.policy import more_urgent


def nothing_else_runs(snapshot: Snapshot) -> bool:
    return snapshot.realtime.count == 0


PREEMPTIVE = Policy("preemptive", more_urgent, nothing_else_runs, separates=True, stands_back=True)
