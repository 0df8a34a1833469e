"""Splits of a query's time, and the choice of variants, against their brute-force twins."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies

from brisk.pipelines.query import (
    POLICIES,
    exact,
    most_accurate_within,
    split_equally,
    split_in_proportion,
)
from support.plans import MS, Nodes, best_accuracy, node, queries

DETECT = node("detect", (0.911, 27), (0.929, 41), (0.941, 54))
FACE = node("face", (0.955, 17), (0.976, 36), (0.981, 58), (0.991, 110))
VEHICLE = node("vehicle", (0.902, 16), (0.918, 23), (0.926, 54), (0.934, 111))
"""GATI's Table 5, latencies cut to whole milliseconds."""

times_ms = strategies.integers(0, 400)


def test_the_paper_s_example_chooses_as_the_paper_says() -> None:
    for second, chosen in ((FACE, "36 ms"), (VEHICLE, "23 ms")):
        plan = split_equally((DETECT, second), 80 * MS)
        assert [choice.budget_ns for choice in plan.values()] == [40 * MS, 40 * MS]
        assert plan["detect"].variant.name == "27 ms"
        assert plan[second.name].variant.name == chosen


def test_a_proportional_split_follows_the_slowest_variants() -> None:
    plan = split_in_proportion((DETECT, VEHICLE), 165 * MS)
    assert plan["detect"].budget_ns == 165 * MS * 54 // (54 + 111)
    assert plan["vehicle"].budget_ns == 165 * MS * 111 // (54 + 111)


def test_the_branches_of_a_fork_share_the_time_of_one_processor() -> None:
    plan = split_equally((DETECT, FACE, VEHICLE), 90 * MS)
    assert {choice.budget_ns for choice in plan.values()} == {30 * MS}


@given(queries(), times_ms, strategies.sampled_from(list(POLICIES)))
def test_a_plan_whose_variants_all_fit_keeps_the_objective(
    nodes: Nodes, left_ms: int, policy: str
) -> None:
    plan = POLICIES[policy](nodes, left_ms * MS)
    latencies = [choice.variant.full_ns for choice in plan.values()]
    if all(choice.variant.full_ns <= choice.budget_ns for choice in plan.values()):
        assert sum(latencies) <= left_ms * MS


@given(queries(), times_ms)
def test_the_exact_plan_is_as_accurate_as_the_best_of_all_plans(
    nodes: Nodes, left_ms: int
) -> None:
    plan = exact(nodes, left_ms * MS)
    chosen = [plan[each.name].variant for each in nodes]
    best = best_accuracy(nodes, left_ms * MS)
    if best is None:
        fastest = [min(v.full_ns for v in each.variants) for each in nodes]
        assert [variant.full_ns for variant in chosen] == fastest
    else:
        assert sum(variant.full_ns for variant in chosen) <= left_ms * MS
        assert math.prod(variant.accuracy for variant in chosen) == pytest.approx(best)


@given(queries(), times_ms, strategies.sampled_from(["equal", "proportional"]))
def test_a_split_never_beats_the_exact_plan(nodes: Nodes, left_ms: int, policy: str) -> None:
    split = POLICIES[policy](nodes, left_ms * MS)
    best = best_accuracy(nodes, left_ms * MS)
    fits = sum(choice.variant.full_ns for choice in split.values()) <= left_ms * MS
    if fits:
        accuracy = math.prod(choice.variant.accuracy for choice in split.values())
        assert best is not None
        assert accuracy <= best + 1e-12


def test_a_node_that_no_variant_fits_gets_its_fastest() -> None:
    assert most_accurate_within(FACE, 3 * MS).name == "17 ms"
    assert most_accurate_within(FACE, -1).name == "17 ms"


def test_of_equally_accurate_variants_the_faster_is_taken() -> None:
    assert most_accurate_within(node("a", (0.9, 30), (0.9, 20)), 40 * MS).name == "20 ms"
