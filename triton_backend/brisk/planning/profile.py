"""What a network has taken so far: running quantiles, learned while it serves."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field

WINDOW = 64
"""Latest runs of one kind of input that count."""

QUANTILE = 0.9
"""What a variant is planned with: nine runs of ten took no longer."""

MOST_SIGNATURES = 64
"""Kinds of input remembered; the one that was not seen for longest is forgotten."""


@dataclass(slots=True)
class _Runs:
    """The latest durations, in order of time and in order of size."""

    size: int
    latest: deque[int] = field(default_factory=deque)
    in_order: list[int] = field(default_factory=list)

    def add(self, duration_ns: int) -> None:
        if len(self.latest) == WINDOW:
            del self.in_order[bisect_left(self.in_order, self.latest.popleft())]
        self.latest.append(duration_ns)
        insort(self.in_order, duration_ns)

    def quantile_ns(self) -> int:
        return self.in_order[min(len(self.in_order) - 1, int(QUANTILE * len(self.in_order)))]


class LatencyProfile:
    """Durations of one network by the kind of its input. Not thread-safe.

    A kind is a hashable signature (the input shapes) and a size (its elements), by which the
    durations of a kind never seen are guessed.
    """

    def __init__(self) -> None:
        self._runs: OrderedDict[Hashable, _Runs] = OrderedDict()

    def learn(self, signature: Hashable, size: int, duration_ns: int) -> None:
        """A run has taken ``duration_ns`` of computing."""
        runs = self._runs.get(signature)
        if runs is None:
            if len(self._runs) == MOST_SIGNATURES:
                self._runs.popitem(last=False)
            runs = self._runs[signature] = _Runs(size)
        self._runs.move_to_end(signature)
        runs.add(duration_ns)

    def forget(self) -> None:
        """Forget all runs: they were of a network that had to get warm first."""
        self._runs.clear()

    def expect_ns(self, signature: Hashable, size: int) -> int | None:
        """The quantile of its kind's latest runs; None where nothing at all has run.

        A kind never seen takes what the one of the nearest size takes, in proportion where it
        is larger.
        """
        runs = self._runs.get(signature)
        if runs is not None:
            return runs.quantile_ns()
        if not self._runs:
            return None
        nearest = min(self._runs.values(), key=lambda other: abs(other.size - size))
        return nearest.quantile_ns() * max(size, nearest.size, 1) // max(nearest.size, 1)


class HitRate:
    """The share of the latest attempts at an early answer that gave one. Not thread-safe."""

    def __init__(self) -> None:
        self._latest: deque[bool] = deque(maxlen=WINDOW)

    def learn(self, was_early: bool) -> None:
        self._latest.append(was_early)

    @property
    def share(self) -> float:
        """0 before the first attempt."""
        return sum(self._latest) / len(self._latest) if self._latest else 0.0
