"""Percentiles, and how many answers a tail takes: no p99 of fewer than 1,000, no p99.9 of 10,000.

The slowest in a hundred of two hundred answers are two: their time says more about two moments of
the machine than about what was measured. So a tail of fewer than ten answers is not reported.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

FIRST_TAIL = 0.99
"""Shares from here on are tails."""

LEAST_BEYOND = 10
"""The fewest answers that a tail has."""

TOO_FEW = "too few answers"

CURVE = (*(percent / 100 for percent in range(100)), 0.995, 0.998, 0.999)
"""Shares of the points of a distribution's curve; 0 is the least value."""


def least_answers(share: float) -> int:
    """Return how many answers the percentile ``share`` takes: 1,000 for 0.99, 10,000 for 0.999."""
    return round(LEAST_BEYOND / (1 - share)) if FIRST_TAIL <= share < 1 else 1


def shortage(count: int, share: float) -> str:
    """Return what ``count`` answers lack for the percentile ``share``; empty if enough."""
    least = least_answers(share)
    return "" if count >= least else f"{TOO_FEW} ({count:,} of {least:,})"


def quantile(values: Sequence[float], share: float) -> float:
    """Return the least of ``values`` that ``share`` of all do not exceed (nearest rank).

    Only for shares below the tails.

    Precondition: at least one value. Raises ValueError for a share of ``tail``.
    """
    if least_answers(share) > 1:
        raise ValueError(f"percentile {share:g} is a tail, which may have too few answers: tail()")
    return _nearest_rank(values, share)


def tail(values: Sequence[float], share: float) -> float | None:
    """Return a quantile of any share; None if ``values`` are too few."""
    if not values or shortage(len(values), share):
        return None
    return _nearest_rank(values, share)


def tail_or_shortage(values: Sequence[float], share: float, scale: float = 1.0) -> float | str:
    """Return the tail times ``scale``, or what is lacking, for a report's row."""
    value = tail(values, share)
    return shortage(len(values), share) if value is None else value * scale


def curve(values: Sequence[float], digits: int = 3) -> list[float]:
    """Return the percentiles of CURVE, in its order, rounded, as far as ``values`` are enough."""
    percentiles = (tail(values, share) for share in CURVE)
    return [round(value, digits) for value in percentiles if value is not None]


def percentile_columns(
    values: Sequence[float], names: Sequence[str], unit: str, scale: float = 1.0
) -> dict[str, float | str]:
    """Return a row's columns, as ``p999_ms`` for ``p999`` and ``ms``, times ``scale``."""
    return {
        f"{name}_{unit}": tail_or_shortage(values, float(f"0.{name[1:]}"), scale) for name in names
    }


def tail_ratio(values: Sequence[float], base: Sequence[float], share: float) -> float | str:
    """Return the tail of ``values`` over that of ``base``, or what one of them lacks."""
    own, other = tail(values, share), tail(base, share)
    if own is None or other is None:
        return shortage(min(len(values), len(base)), share)
    return own / other


def _nearest_rank(values: Sequence[float], share: float) -> float:
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
