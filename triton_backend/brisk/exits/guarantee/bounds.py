"""Exact binomial bounds (Clopper and Pearson, Biometrika 26, 1934)."""

from __future__ import annotations

from scipy.special import betaincinv


def lower_bound(successes: int, trials: int, confidence: float) -> float:
    """One-sided: the probability of success is at least that, with ``confidence``."""
    if successes == 0:
        return 0.0
    return float(betaincinv(successes, trials - successes + 1, 1 - confidence))


def upper_bound(successes: int, trials: int, confidence: float) -> float:
    """One-sided: the probability of success is at most that, with ``confidence``."""
    return 1 - lower_bound(trials - successes, trials, confidence)


def fewest_to_prove(probability: float, confidence: float) -> int:
    """Trials without a single failure that prove ``probability``; below 1."""
    trials = 1
    while lower_bound(trials, trials, confidence) < probability:
        trials *= 2
    low = trials // 2
    while trials - low > 1:
        middle = (low + trials) // 2
        if lower_bound(middle, middle, confidence) < probability:
            low = middle
        else:
            trials = middle
    return trials
