"""Splits of a query's time, and the choice of variants, against their brute-force twins."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings, strategies

from brisk.errors import InvalidModelError
from brisk.planning import (
    POLICIES,
    Dag,
    Execution,
    QueryNode,
    exact,
    split_equally,
    split_in_proportion,
)
from brisk.planning.choosing import most_accurate_within
from support.plans import MS, best_accuracy, budgets_by_paths, chains, dags, node

TRAFFIC = Dag(
    (
        node("detect", (0.911, 27), (0.929, 41), (0.941, 54)),
        node("face", (0.955, 17), (0.976, 36), (0.981, 58), (0.991, 110), after=("detect",)),
        node("vehicle", (0.902, 16), (0.918, 23), (0.926, 54), (0.934, 111), after=("detect",)),
    )
)
"""GATI's Table 5, latencies cut to whole milliseconds."""

times_ms = strategies.integers(0, 400)
executions = strategies.sampled_from(Execution)


def test_the_paper_s_example_chooses_as_the_paper_says() -> None:
    plan = split_equally(TRAFFIC, 80 * MS, Execution.PARALLEL)
    assert {name: choice.budget_ns for name, choice in plan.items()} == dict.fromkeys(
        ("detect", "face", "vehicle"), 40 * MS
    )
    assert plan["detect"].variant.name == "27 ms"
    assert plan["face"].variant.name == "36 ms"
    assert plan["vehicle"].variant.name == "23 ms"


def test_a_proportional_split_follows_the_slowest_variants() -> None:
    plan = split_in_proportion(TRAFFIC, 165 * MS, Execution.PARALLEL)
    assert plan["detect"].budget_ns == 165 * MS * 54 // (54 + 111), "the path over vehicle"
    assert plan["face"].budget_ns == 165 * MS * 110 // (54 + 110)


def test_on_one_processor_the_branches_of_a_fork_share_the_time() -> None:
    plan = split_equally(TRAFFIC, 90 * MS, Execution.SERIAL)
    assert {choice.budget_ns for choice in plan.values()} == {30 * MS}


@given(dags(), times_ms, executions)
def test_an_equal_split_is_the_least_over_all_paths(
    dag: Dag, left_ms: int, execution: Execution
) -> None:
    plan = split_equally(dag, left_ms * MS, execution)
    weights = {each.name: 1 for each in dag.nodes}
    expected = budgets_by_paths(dag, left_ms * MS, execution, weights)
    assert {name: choice.budget_ns for name, choice in plan.items()} == expected


@given(dags(), times_ms, executions)
def test_a_proportional_split_is_the_least_over_all_paths(
    dag: Dag, left_ms: int, execution: Execution
) -> None:
    plan = split_in_proportion(dag, left_ms * MS, execution)
    weights = {each.name: each.slowest_ns for each in dag.nodes}
    expected = budgets_by_paths(dag, left_ms * MS, execution, weights)
    assert {name: choice.budget_ns for name, choice in plan.items()} == expected


@given(dags(), times_ms, strategies.sampled_from(list(POLICIES)))
def test_a_plan_whose_variants_all_fit_keeps_the_objective(
    dag: Dag, left_ms: int, policy: str
) -> None:
    plan = POLICIES[policy](dag, left_ms * MS, Execution.SERIAL)
    taken = [choice.variant.full_ns for choice in plan.values()]
    if all(choice.variant.full_ns <= choice.budget_ns for choice in plan.values()):
        assert sum(taken) <= left_ms * MS


@given(dags(), times_ms)
def test_the_exact_plan_is_as_accurate_as_the_best_of_all_plans(dag: Dag, left_ms: int) -> None:
    plan = exact(dag, left_ms * MS, Execution.SERIAL)
    chosen = [plan[each.name].variant for each in dag.nodes]
    best = best_accuracy(dag, left_ms * MS)
    if best is None:
        fastest = [min(v.full_ns for v in each.variants) for each in dag.nodes]
        assert [variant.full_ns for variant in chosen] == fastest
    else:
        assert sum(variant.full_ns for variant in chosen) <= left_ms * MS
        assert math.prod(variant.accuracy for variant in chosen) == pytest.approx(best)


@given(chains(), times_ms, strategies.sampled_from(["equal", "proportional"]))
def test_a_split_never_beats_the_exact_plan(dag: Dag, left_ms: int, policy: str) -> None:
    split = POLICIES[policy](dag, left_ms * MS, Execution.SERIAL)
    best = best_accuracy(dag, left_ms * MS)
    fits = sum(choice.variant.full_ns for choice in split.values()) <= left_ms * MS
    if fits:
        accuracy = math.prod(choice.variant.accuracy for choice in split.values())
        assert best is not None
        assert accuracy <= best + 1e-12


def test_a_node_that_no_variant_fits_gets_its_fastest() -> None:
    assert most_accurate_within(TRAFFIC.node("face"), 3 * MS).name == "17 ms"
    assert most_accurate_within(TRAFFIC.node("face"), -1).name == "17 ms"


def test_of_equally_accurate_variants_the_faster_is_taken() -> None:
    assert most_accurate_within(node("a", (0.9, 30), (0.9, 20)), 40 * MS).name == "20 ms"


@settings(max_examples=30)
@given(strategies.integers(2, 40))
def test_many_nodes_are_planned_at_once(width: int) -> None:
    """A ladder has 2^width paths; none is walked."""
    nodes = [node("n0", (0.9, 1))]
    for rung in range(1, width):
        previous = nodes[-1].name
        sides = [node(f"n{rung}{side}", (0.9, 1), after=(previous,)) for side in "ab"]
        nodes += [*sides, node(f"n{rung}", (0.9, 1), after=tuple(s.name for s in sides))]
    plan = split_equally(Dag(tuple(nodes)), 1000 * MS, Execution.PARALLEL)
    assert plan["n0"].budget_ns == 1000 * MS // (2 * width - 1)


def test_nodes_out_of_order_are_refused() -> None:
    with pytest.raises(InvalidModelError, match=r"node 'b' .* comes before \['a'\]"):
        Dag((node("b", (0.9, 1), after=("a",)), node("a", (0.9, 1))))
    with pytest.raises(InvalidModelError, match="node 'a' has no variant"):
        Dag((QueryNode("a", ()),))
