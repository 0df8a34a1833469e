"""Which caches to serve: pure functions of what exploration measured (GATI, section 4, A.1)."""

from brisk.exits.composition.expectation import Expectation, expect, expect_counted
from brisk.exits.composition.problem import Candidate, CompositionProblem, Outcomes
from brisk.exits.composition.score import (
    ALPHAS,
    compose_by_expected_latency,
    compose_by_hit_rate,
    compose_by_latency_gain,
    compose_by_score,
    compose_with_alpha,
)

__all__ = [
    "ALPHAS",
    "Candidate",
    "CompositionProblem",
    "Expectation",
    "Outcomes",
    "compose_by_expected_latency",
    "compose_by_hit_rate",
    "compose_by_latency_gain",
    "compose_by_score",
    "compose_with_alpha",
    "expect",
    "expect_counted",
]
