"""Which arrival a client sends next, and which it forgets: DISB's rule (its ``load.cpp``)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from brisk_client.workload.spec.description import Load, Periodic, Poisson, Trace, Workload


@dataclass(frozen=True, slots=True)
class Launch:
    """Send at ``scheduled_ns``, or now if that is over; ``dropped`` stale ones came before it."""

    scheduled_ns: int
    dropped: int


class Pacer:
    """Goes through ``arrivals`` (times of the caller's clock, ascending) up to ``end_ns``.

    An arrival that is due is stale when the one after it is due as well. The newest due one is
    never stale: it is sent late, and its latency counts from when it was due.
    """

    def __init__(self, arrivals: Iterator[int], end_ns: int, drops_stale: bool) -> None:
        self._arrivals = arrivals
        self._end_ns = end_ns
        self._drops_stale = drops_stale
        self._following = next(arrivals, None)

    def next(self, now_ns: int) -> Launch | None:
        """The next launch for a client that is free at ``now_ns``; None where no more come."""
        dropped = 0
        chosen = self._following
        if chosen is None:
            return None
        self._following = next(self._arrivals, None)
        latest_ns = min(now_ns, self._end_ns)  # what is due after the end makes nothing stale
        while self._drops_stale and self._following is not None and self._following < latest_ns:
            chosen, dropped = self._following, dropped + 1
            self._following = next(self._arrivals, None)
        if chosen >= self._end_ns:
            self._following = None
            return None
        return Launch(chosen, dropped)


# When open-loop loads send: pure functions of the load and a random generator.


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
