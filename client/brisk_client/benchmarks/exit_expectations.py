"""What ways of composing and exploring expect of a model's caches (GATI, Fig. 24, 25)."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from brisk.exits.composition import (
    CompositionProblem,
    Expectation,
    compose_by_expected_latency,
    compose_by_hit_rate,
    compose_by_latency_gain,
    compose_by_score,
    expect_counted,
)
from brisk.exits.exploration import Exploration


def expected_rows(label: str, found: Exploration) -> list[dict[str, Any]]:
    """A row for each way of composing, and for each variant as the only one explored."""
    problem = found.problem
    if not problem.candidates:
        return []
    ways = {
        "exact": compose_by_expected_latency(problem),
        "score": compose_by_score(problem)[1],
        "greedy by latency gain": compose_by_latency_gain(problem),
        "greedy by hit rate": compose_by_hit_rate(problem),
    }
    rows = [_row(label, name, problem, way) for name, way in ways.items()]
    for variant in dict.fromkeys(one.variant for one in problem.candidates):
        only = _only(problem, variant)
        rows.append(_row(label, f"{variant} alone", only, compose_by_expected_latency(only)))
    return rows


def _row(
    label: str, name: str, problem: CompositionProblem, composed: Expectation
) -> dict[str, Any]:
    way = expect_counted(problem, composed.chosen)
    return {
        "model": label,
        "side": f"expected, {name}",
        "mean_ms": way.latency_s * 1e3,
        "speed_up": problem.total_s / way.latency_s,
        "agreement": way.accuracy,
        "early": sum(way.answered),
    }


def _only(problem: CompositionProblem, variant: str) -> CompositionProblem:
    kept = [i for i, one in enumerate(problem.candidates) if one.variant == variant]
    outcomes = problem.outcomes
    if outcomes is not None:
        rows = np.array(kept)
        outcomes = dataclasses.replace(
            outcomes, hits=outcomes.hits[rows], right=outcomes.right[rows]
        )
    candidates = tuple(problem.candidates[index] for index in kept)
    return dataclasses.replace(problem, candidates=candidates, outcomes=outcomes)
