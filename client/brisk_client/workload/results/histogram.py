"""Times counted in buckets: bounded memory however long a run is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from brisk_client.tails import shortage

RELATIVE_WIDTH = 0.002
"""Of a bucket: a quantile is right to a thousandth either way."""

_LOG_BASE = math.log1p(RELATIVE_WIDTH)


@dataclass(slots=True)
class Histogram:
    """Positive times in ns. The mean, the least and the greatest are exact, quantiles nearly."""

    counts: Counter[int] = field(default_factory=Counter)
    total_ns: int = 0
    least_ns: int = 0
    greatest_ns: int = 0

    @property
    def count(self) -> int:
        return self.counts.total()

    def add(self, time_ns: int) -> None:
        """Times below 1 ns count as 1 ns."""
        time_ns = max(1, time_ns)
        if not self.counts or time_ns < self.least_ns:
            self.least_ns = time_ns
        self.greatest_ns = max(self.greatest_ns, time_ns)
        self.counts[int(math.log(time_ns) / _LOG_BASE)] += 1
        self.total_ns += time_ns

    def merge(self, other: Histogram) -> None:
        if not other.counts:
            return
        self.least_ns = min(self.least_ns, other.least_ns) if self.counts else other.least_ns
        self.greatest_ns = max(self.greatest_ns, other.greatest_ns)
        self.counts.update(other.counts)
        self.total_ns += other.total_ns

    def mean_ns(self) -> float | None:
        """None where there is nothing."""
        return self.total_ns / self.count if self.counts else None

    def quantile_ns(self, share: float) -> float | None:
        """The least time that ``share`` of all do not exceed (nearest rank).

        None of nothing, and where the times are too few for a tail (``brisk_client.tails``).
        """
        if not self.counts or shortage(self.count, share):
            return None
        rank = max(1, math.ceil(share * self.count))
        seen = 0
        for bucket in sorted(self.counts):
            seen += self.counts[bucket]
            if seen >= rank:
                middle_ns = math.exp((bucket + 0.5) * _LOG_BASE)
                return min(max(middle_ns, self.least_ns), self.greatest_ns)
        raise AssertionError("unreachable: the rank is at most the count")

    def to_document(self) -> dict[str, object]:
        """For JSON; ``from_document`` gives it back."""
        return {
            "counts": {str(bucket): count for bucket, count in self.counts.items()},
            "total_ns": self.total_ns,
            "least_ns": self.least_ns,
            "greatest_ns": self.greatest_ns,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, object]) -> Histogram:
        counts, total, least, greatest = (
            document[name] for name in ("counts", "total_ns", "least_ns", "greatest_ns")
        )
        assert isinstance(counts, Mapping)
        assert isinstance(total, int)
        assert isinstance(least, int)
        assert isinstance(greatest, int)
        return cls(Counter({int(b): int(n) for b, n in counts.items()}), total, least, greatest)
