"""What a network has taken so far: running quantiles, learned while it serves."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field

WINDOW = 64
"""Latest runs of one kind of input that count."""

QUANTILE = 0.75
"""What a variant is planned with: three runs of four took no longer. Beside other work one run in
ten takes many times as long, which says nothing of the variant."""

FEW = 10
"""Fewer runs have no tail to speak of: the slowest of three is an accident as often as not, and
their median stands for them."""

HOPE = 0.995
"""Each time another variant runs instead, this one is expected to take so much less.

What was measured once, beside other work, may be true no more, and a variant that is thought too
slow is never measured again. So it is tried again in time: one that is 5 % too slow for its place
after 10 requests, twice as slow after 140, ten times after 460. A mistake costs one request, and
the measurement ends the hope.
"""

OUTDATED = 50
"""Requests for which another variant ran, after which a new run replaces all that was known."""

MOST_SIGNATURES = 64
"""Kinds of input remembered; the one that was not seen for longest is forgotten."""


@dataclass(slots=True)
class _Runs:
    """The latest durations, in order of time and in order of size.

    ``passed_by``: requests since the last of them for which another variant ran.
    """

    size: int
    latest: deque[int] = field(default_factory=deque)
    in_order: list[int] = field(default_factory=list)
    passed_by: int = 0

    def add(self, duration_ns: int) -> None:
        if self.passed_by >= OUTDATED:
            self.latest.clear()
            self.in_order.clear()
        if len(self.latest) == WINDOW:
            del self.in_order[bisect_left(self.in_order, self.latest.popleft())]
        self.latest.append(duration_ns)
        insort(self.in_order, duration_ns)
        self.passed_by = 0

    def expect_ns(self) -> int:
        count = len(self.in_order)
        place = (count - 1) // 2 if count < FEW else min(count - 1, int(QUANTILE * count))
        return int(self.in_order[place] * HOPE**self.passed_by)


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

    def pass_by(self, signature: Hashable) -> None:
        """Another variant of the same node has run on such an input."""
        runs = self._runs.get(signature)
        if runs is not None:
            runs.passed_by += 1

    def forget(self) -> None:
        """Forget all runs: they were of a network that had to get warm first."""
        self._runs.clear()

    def expect_ns(self, signature: Hashable, size: int) -> int | None:
        """What a run of this kind takes, most probably; None where nothing at all has run.

        A kind never seen takes what the one of the nearest size takes, in proportion where it
        is larger.
        """
        runs = self._runs.get(signature)
        if runs is not None:
            return runs.expect_ns()
        if not self._runs:
            return None
        nearest = min(self._runs.values(), key=lambda other: abs(other.size - size))
        return nearest.expect_ns() * max(size, nearest.size, 1) // max(nearest.size, 1)
