"""Durations of a network's runs: running quantiles, learned while it serves."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from typing import TypeAlias

WINDOW = 64
"""The number of latest runs of one kind of input that count."""

QUANTILE = 0.75
"""The quantile of run times that a variant is planned with: three runs of four took no longer.
Concurrently with other work one run in ten takes many times as long, which says nothing of the
variant."""

FEW = 10
"""The number of runs below which there is no tail to speak of: the slowest of three is an accident
as often as not, and their median stands for them."""

HOPE = 0.995
"""The factor of a variant's expected time each time another one runs instead.

What was measured once, concurrently with other work, may be true no more, and a variant that is
thought too slow is never measured again. So it is tried again in time: one that is 5 % too slow
for its place after 10 requests, twice as slow after 140, ten times after 460. A mistake costs one
request, and the measurement ends the hope.
"""

OUTDATED = 50
"""The number of requests for which another variant ran, after which a new run replaces all that
was known."""

MOST_SHAPES = 64
"""The most kinds of input remembered; the one not seen for longest is forgotten."""

Shapes: TypeAlias = tuple[tuple[int, ...], ...]
"""The shapes of a request's inputs."""


class _Runs:
    """The latest durations for one kind of input.

    ``passed_by``: the requests since the last of them for which another variant ran.
    """

    def __init__(self) -> None:
        self.passed_by = 0
        self._latest: deque[int] = deque(maxlen=WINDOW)
        self._quantile_ns = 0

    def add(self, duration_ns: int) -> None:
        if self.passed_by >= OUTDATED:
            self._latest.clear()
        self._latest.append(duration_ns)
        self.passed_by = 0
        count = len(self._latest)
        place = (count - 1) // 2 if count < FEW else int(QUANTILE * count)
        self._quantile_ns = sorted(self._latest)[place]

    def expect_ns(self) -> int:
        return int(self._quantile_ns * HOPE**self.passed_by)


class LatencyProfile:
    """Durations of one network, by the shapes of the request's inputs. Not thread-safe."""

    def __init__(self) -> None:
        self._runs: OrderedDict[Shapes, _Runs] = OrderedDict()
        self._unknown_passed_by: Counter[int] = Counter()
        """How often another variant has run on shapes not known here, by the binary digits of
        their size: inputs that differ from request to request add up."""

    def learn(self, shapes: Shapes, duration_ns: int) -> None:
        if shapes not in self._runs:
            if len(self._runs) == MOST_SHAPES:
                self._runs.popitem(last=False)
            self._runs[shapes] = _Runs()
            self._unknown_passed_by.pop(_size(shapes).bit_length(), None)
        self._runs.move_to_end(shapes)
        self._runs[shapes].add(duration_ns)

    def pass_by(self, shapes: Shapes) -> None:
        """Note that another variant of the same node has run on inputs of these shapes."""
        if shapes in self._runs:
            self._runs[shapes].passed_by += 1
        elif self._runs:
            self._unknown_passed_by[_size(shapes).bit_length()] += 1

    def expect_ns(self, shapes: Shapes) -> int | None:
        """Return the expected duration of a run with these shapes; None if none has run yet.

        For shapes never seen it is that of the shapes nearest in size, scaled up in proportion if
        these are smaller, and lowered for each time another variant has run on such ones.
        """
        if shapes in self._runs:
            return self._runs[shapes].expect_ns()
        if not self._runs:
            return None
        size = _size(shapes)
        nearest = min(self._runs, key=lambda other: abs(_size(other) - size))
        known = max(_size(nearest), 1)
        expected_ns = self._runs[nearest].expect_ns() * max(size, known) // known
        return int(expected_ns * HOPE ** self._unknown_passed_by[size.bit_length()])


def _size(shapes: Shapes) -> int:
    return sum(map(math.prod, shapes))
