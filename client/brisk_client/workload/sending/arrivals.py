"""When open-loop loads send: pure functions of the load and a random generator."""

from __future__ import annotations

import random
from collections.abc import Iterator

from brisk_client.workload.spec.description import Load, Periodic, Poisson, Trace, Workload


def arrivals_ns(load: Load, generator: random.Random) -> Iterator[int]:
    """Times from the start, ascending; endless but for a trace.

    Raises TypeError for a load that answers decide (Continuous, Dependent).
    """
    if isinstance(load, Periodic):
        return _periodic(load)
    if isinstance(load, Poisson):
        return _poisson(load, generator)
    if isinstance(load, Trace):
        return (round(arrival_s * 1e9) for arrival_s in load.arrivals_s)
    raise TypeError(f"{type(load).__name__} is no open-loop load")


def generator_of(workload: Workload, task: str) -> random.Random:
    """A generator of the task's own: its arrivals do not depend on the other tasks."""
    return random.Random(f"{workload.seed} {task}")


def _periodic(load: Periodic) -> Iterator[int]:
    phase_s, number = load.phase_s or 0.0, 0
    while True:
        yield round((phase_s + number / load.frequency_hz) * 1e9)
        number += 1


def _poisson(load: Poisson, generator: random.Random) -> Iterator[int]:
    arrival_s = 0.0
    while True:
        arrival_s += generator.expovariate(load.frequency_hz)
        yield round(arrival_s * 1e9)
