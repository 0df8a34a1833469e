"""What a network may take: one time, or several where it may answer early."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from brisk.errors import InternalError

_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Outcome:
    """An answer after ``latency_ns``, with this probability."""

    probability: float
    latency_ns: int


@dataclass(frozen=True, slots=True)
class Latency:
    """A distribution of latencies: a learned cache's hits, a cascade's, and the full run.

    ``outcomes``: from the earliest answer to the latest, probabilities that sum to one. The last
    one is the full run, which always has a place, if only with probability 0. Raises
    InternalError where they are not that.
    """

    outcomes: tuple[Outcome, ...]

    def __post_init__(self) -> None:
        total = sum(outcome.probability for outcome in self.outcomes)
        times = [outcome.latency_ns for outcome in self.outcomes]
        if abs(total - 1) > _ROUNDING or min(o.probability for o in self.outcomes) < 0:
            raise InternalError(f"probabilities of latencies sum to {total}, not to 1")
        if times != sorted(times) or times[0] < 0:
            raise InternalError(f"latencies are not in order: {times}")

    @classmethod
    def certain(cls, latency_ns: int) -> Latency:
        """Always the same."""
        return cls((Outcome(1.0, latency_ns),))

    @classmethod
    def with_early_answers(cls, early: Sequence[Outcome], full_ns: int) -> Latency:
        """Early answers, each with the share of all requests that it answers; else a full run.

        Shares that sum to more than one are cut: the earliest answers come first. An early
        answer later than the full run counts as one.
        """
        left, outcomes = 1.0, []
        for answer in sorted(early, key=lambda answer: answer.latency_ns):
            share = min(left, max(0.0, answer.probability))
            outcomes.append(Outcome(share, min(answer.latency_ns, full_ns)))
            left -= share
        return cls((*outcomes, Outcome(max(0.0, left), full_ns)))

    @property
    def full_ns(self) -> int:
        """Without an early answer."""
        return self.outcomes[-1].latency_ns

    @property
    def mean_ns(self) -> float:
        return sum(outcome.probability * outcome.latency_ns for outcome in self.outcomes)

    def quantile_ns(self, confidence: float) -> int:
        """The least time within which it answers with at least this probability; 1: always."""
        reached = 0.0
        for outcome in self.outcomes[:-1]:
            reached += outcome.probability
            if confidence < 1 and reached >= confidence:
                return outcome.latency_ns
        return self.full_ns
