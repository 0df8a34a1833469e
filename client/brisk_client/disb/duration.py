"""How long `brisk bench preempt` will take on a quiet machine of two cores, told before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from brisk_client.disb.comparison import REHEARSAL_S, Extent
from brisk_client.disb.preemption import LAYERS_MS, OTHERS_SHARE

BRISK_START_S, TRITON_START_S = 15.0, 25.0
"""Of a server with all entries, until its kernels stay."""

CALIBRATION_S = 6.0
"""Before each round."""

RUN_START_S = 3.0
"""Of a workload's run: warm-up, generators, the last answers."""

INTERRUPTION_S, WAITING_S = 0.035, 0.1
"""Of a real-time request with the pause before it: interrupting, and waiting."""

POINT_S = 0.015
PAIR_S = 2.2


def estimate_s(
    parts: Sequence[str],
    *,
    workloads: int,
    sides: int,
    settings: int,
    policies: int,
    networks: int,
    extent: Extent,
    interruptions: int,
    points: int,
    served_requests: int,
) -> dict[str, float]:
    """By part. ``sides``: without Triton's, of which ``settings`` are measured. ``policies``:
    whose preemption is.
    """
    rows = {"preemption": networks, "layers": len(LAYERS_MS)}
    found = {
        "workloads": _workloads_s(workloads, sides, settings, extent),
        "pairs": 2 * (BRISK_START_S + networks**2 * PAIR_S),
        "equality": 2 * BRISK_START_S + points * POINT_S + networks * served_requests * 0.5,
    }
    for part, count in rows.items():
        slow = interruptions / OTHERS_SHARE * WAITING_S
        starts_s = policies * 2 * BRISK_START_S + settings * TRITON_START_S
        others = max(0, policies - 1) + settings
        found[part] = starts_s + (count + 1) * (interruptions * INTERRUPTION_S + others * slow)
    return {part: found[part] for part in parts}


def _workloads_s(workloads: int, sides: int, settings: int, extent: Extent) -> float:
    starts_s = max(0, sides - 1) * BRISK_START_S + settings * TRITON_START_S
    in_rounds = sides + (min(1, settings) if extent.screens else settings)
    rehearsed = sides if extent.screens else sides + settings
    screened = settings if extent.screens else 0
    each_s = (
        (extent.rounds + 1) * CALIBRATION_S
        + rehearsed * (min(extent.seconds, REHEARSAL_S) + RUN_START_S)
        + screened * (extent.baseline_s + RUN_START_S)
        + extent.rounds * in_rounds * (extent.seconds + RUN_START_S)
    )
    return starts_s + workloads * each_s


def told_minutes(parts: Mapping[str, float]) -> str:
    """In whole minutes, at least one, with each part's."""
    each = ", ".join(f"{part} {max(1, round(s / 60))}" for part, s in parts.items())
    return f"{max(1, round(sum(parts.values()) / 60))} minutes in all ({each})"
