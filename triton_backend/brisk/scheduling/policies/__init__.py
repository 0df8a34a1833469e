"""Policies: how a device is shared between classes, chosen by name."""

from __future__ import annotations

from collections.abc import Mapping

from brisk.errors import InvalidConfigurationError
from brisk.scheduling.policies.base import (
    Limits,
    PaddingTrial,
    Policy,
    Realtime,
    Snapshot,
    run_slowdown,
)
from brisk.scheduling.policies.catalogue import DEADLINE, PADDED, PREEMPTIVE, SEQUENTIAL, SHARED

POLICIES: Mapping[str, Policy] = {
    policy.name: policy for policy in (PADDED, PREEMPTIVE, DEADLINE, SEQUENTIAL, SHARED)
}
DEFAULT_POLICY = PADDED.name


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


__all__ = [
    "DEFAULT_POLICY",
    "POLICIES",
    "Limits",
    "PaddingTrial",
    "Policy",
    "Realtime",
    "Snapshot",
    "find_policy",
    "run_slowdown",
]
