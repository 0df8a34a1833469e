"""What a model's segments cost, as the planner sees them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from brisk.errors import InvalidModelError


@dataclass(frozen=True, slots=True)
class SegmentProfile:
    """``weight_bytes``: what a host must have to run it. ``run_s``: of one request, warm.

    ``live_bytes``: of the values that cross its end, which the next host is sent where the model
    is cut there; of the last segment the answers. ``load_s``: from bytes to a session.
    """

    weight_bytes: int
    run_s: float
    live_bytes: int
    load_s: float


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """Segments in the order in which they run."""

    segments: tuple[SegmentProfile, ...]

    def __post_init__(self) -> None:
        """Raises InvalidModelError where there is no segment, or one with no such cost."""
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
        """I(1) of the paper: of one request on one host."""
        return sum(each.run_s for each in self.segments)

    def bytes_before(self) -> list[int]:
        """By border, from 0 to the number of segments: of all weights in front of it."""
        return _sums(each.weight_bytes for each in self.segments)

    def run_before_s(self) -> list[float]:
        """By border: of running all that is in front of it."""
        return _sums(each.run_s for each in self.segments)


def _sums(costs: Iterable[float]) -> list:
    return list(accumulate(costs, initial=0))
