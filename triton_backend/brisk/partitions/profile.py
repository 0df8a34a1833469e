"""The costs of a model's segments, which the planner reads."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from brisk.errors import InvalidModelError


@dataclass(frozen=True, slots=True)
class SegmentProfile:
    """The bytes and times that one segment of a model costs."""

    weight_bytes: int
    """The bytes that a host must have to run the segment."""
    run_s: float
    """The segment's time in one warm request."""
    live_bytes: int
    """The size of the values that cross the segment's end, which are sent to the next host if the
    model is cut there; for the last segment, of the answers."""
    load_s: float
    """The time from the arrived bytes to a session."""


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """The costs of a model's segments, in the order in which they run."""

    segments: tuple[SegmentProfile, ...]

    def __post_init__(self) -> None:
        """Raise InvalidModelError if there is no segment, or a cost is negative or not finite."""
        if not self.segments:
            raise InvalidModelError("a profile of no segments; expected one at least")
        for index, each in enumerate(self.segments):
            costs = (each.weight_bytes, each.run_s, each.live_bytes, each.load_s)
            if not all(math.isfinite(cost) and cost >= 0 for cost in costs):
                raise InvalidModelError(
                    f"segment {index}: bytes and seconds are {costs}; expected finite numbers "
                    "from 0 on"
                )

    def __len__(self) -> int:
        return len(self.segments)

    @property
    def weight_bytes(self) -> int:
        return sum(each.weight_bytes for each in self.segments)

    @property
    def run_s(self) -> float:
        """The time of one request on one host: I(1) of the paper."""
        return sum(each.run_s for each in self.segments)

    def bytes_before(self) -> list[int]:
        """Return the bytes of all weights before each cut, from 0 to the number of segments."""
        return _sums(each.weight_bytes for each in self.segments)

    def run_before_s(self) -> list[float]:
        """Return the time to run all segments before each cut, from 0 to their number."""
        return _sums(each.run_s for each in self.segments)


def _sums(costs: Iterable[float]) -> list:
    return list(accumulate(costs, initial=0))
