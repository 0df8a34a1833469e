"""Queries in virtual time: replanning when nodes answer early, or late."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, strategies

from brisk.pipelines.query import (
    POLICIES,
    NetworkVariant,
    Policy,
    Query,
    Replanning,
    split_equally,
    split_in_proportion,
)
from support.plans import MS, Nodes, node, queries

TRAFFIC = (
    node("detect", (0.911, 27), (0.941, 54)),
    node("face", (0.976, 36), (0.981, 58), (0.991, 110)),
)


def test_the_paper_s_early_answer_buys_a_better_second_network() -> None:
    """GATI 5.1: 80 ms, the detector answers after 20, 60 are left."""
    static = Query(TRAFFIC, 80 * MS, 0, split_equally, Replanning.STATIC)
    incremental = Query(TRAFFIC, 80 * MS, 0, split_equally, Replanning.INCREMENTAL)
    for query in (static, incremental):
        assert query.begin(0).variant.name == "27 ms"
    assert static.begin(20 * MS).variant.name == "36 ms"
    assert incremental.begin(20 * MS).variant.name == "58 ms"


def test_a_late_node_makes_the_next_one_hurry() -> None:
    query = Query(TRAFFIC, 160 * MS, 1000, split_equally, Replanning.INCREMENTAL)
    assert query.plan["face"].variant.name == "58 ms"
    assert query.begin(1000).budget_ns == 80 * MS
    assert query.begin(1000 + 120 * MS).variant.name == "36 ms"


def test_a_query_past_its_time_ends_as_fast_as_it_can() -> None:
    query = Query(TRAFFIC, 50 * MS, 0, split_in_proportion, Replanning.INCREMENTAL)
    query.begin(0)
    choice = query.begin(300 * MS)
    assert choice.variant.name == "36 ms"
    assert choice.budget_ns < 0


def test_a_variant_that_usually_answers_early_is_planned_so_where_a_whole_run_is_in_time() -> None:
    """100 ms are left: 54 for the detector's whole run leave the 36 of the fastest face."""
    early = NetworkVariant("54 ms", 0.941, 54 * MS, usual_ns=10 * MS)
    detect = replace(TRAFFIC[0], variants=(TRAFFIC[0].variants[0], early))
    nodes = (detect, TRAFFIC[1])
    for left_ms, replanning, expected in (
        (100, Replanning.INCREMENTAL, "54 ms"),
        (89, Replanning.INCREMENTAL, "27 ms"),
        (100, Replanning.STATIC, "27 ms"),
    ):
        query = Query(nodes, left_ms * MS, 0, split_equally, replanning)
        assert query.begin(0).variant.name == expected
    query = Query(nodes, 100 * MS, 0, split_equally, Replanning.INCREMENTAL)
    query.begin(0)
    assert query.begin(54 * MS).variant.name == "36 ms", "it was not early this time"


def test_a_variant_that_is_never_early_leaves_the_others_time_for_whole_runs() -> None:
    """It fits with what the one behind it usually takes, and not with that one's whole run."""
    hoped = NetworkVariant("9 ms", 0.9, 9 * MS, usual_ns=0)
    nodes = (node("slow", (0.51, 50), (0.5, 1)), replace(TRAFFIC[1], variants=(hoped,)))
    for left_ms, expected in ((59, "50 ms"), (55, "1 ms")):
        query = Query(nodes, left_ms * MS, 0, POLICIES["exact"], Replanning.INCREMENTAL)
        assert query.begin(0).variant.name == expected


@given(queries(), strategies.integers(0, 300), strategies.data())
def test_hopes_that_fail_break_no_objective_that_whole_runs_kept(
    nodes: Nodes, objective_ms: int, data: strategies.DataObject
) -> None:
    """Whatever variants usually take: if the fastest fit in time, all nodes do, early or not."""
    hoping = tuple(
        replace(
            each,
            variants=tuple(
                replace(v, usual_ns=data.draw(strategies.integers(0, v.full_ns)))
                for v in each.variants
            ),
        )
        for each in nodes
    )
    full_ns = {(each.name, v.name): v.full_ns for each in nodes for v in each.variants}
    policy = data.draw(strategies.sampled_from(list(POLICIES.values())))
    fastest = [min(v.full_ns for v in each.variants) for each in nodes]
    query = Query(hoping, objective_ms * MS, 0, policy, Replanning.INCREMENTAL)
    now_ns = 0
    for each in nodes:
        now_ns += full_ns[each.name, query.begin(now_ns).variant.name]
    planned = [
        c.variant.full_ns <= c.budget_ns
        for c in Query(nodes, objective_ms * MS, 0, policy).plan.values()
    ]
    if sum(fastest) <= objective_ms * MS and all(planned):
        assert now_ns <= objective_ms * MS


@given(queries(), strategies.integers(1, 400), strategies.data())
def test_what_is_left_over_is_shared_as_pseudocode_1_shares_it(
    nodes: Nodes, objective_ms: int, data: strategies.DataObject
) -> None:
    """The literal form, budgets plus shares of what was saved, for both splits."""
    for policy, weigh in (
        (split_equally, lambda each: 1),
        (split_in_proportion, lambda each: each.slowest_ns),
    ):
        query = Query(nodes, objective_ms * MS, 0, policy, Replanning.INCREMENTAL)
        total = sum(weigh(each) for each in nodes)
        budgets = {each.name: objective_ms * MS * weigh(each) / total for each in nodes}
        now_ns = 0
        for place, each in enumerate(nodes):
            choice = query.begin(now_ns)
            assert abs(choice.budget_ns - budgets[each.name]) <= len(nodes)
            took_ns = data.draw(strategies.integers(0, 100 * MS))
            now_ns += took_ns
            saved_ns = choice.budget_ns - took_ns
            behind = nodes[place + 1 :]
            weight = sum(weigh(other) for other in behind)
            for other in behind:
                budgets[other.name] += saved_ns * weigh(other) / weight


@given(queries(), strategies.integers(0, 300), strategies.sampled_from(list(POLICIES.values())))
def test_nodes_that_take_what_was_planned_leave_the_objective_kept(
    nodes: Nodes, objective_ms: int, policy: Policy
) -> None:
    """If the first plan fits, replanning never breaks it: every later one fits, too."""
    query = Query(nodes, objective_ms * MS, 0, policy, Replanning.INCREMENTAL)
    first = query.plan.values()
    fits = all(choice.variant.full_ns <= choice.budget_ns for choice in first)
    now_ns = 0
    for _ in nodes:
        now_ns += query.begin(now_ns).variant.full_ns
    if fits:
        assert now_ns <= objective_ms * MS


@given(queries(), strategies.integers(0, 300), strategies.data())
def test_a_static_plan_is_kept_whatever_happens(
    nodes: Nodes, objective_ms: int, data: strategies.DataObject
) -> None:
    query = Query(nodes, objective_ms * MS, 0, split_equally, Replanning.STATIC)
    planned = dict(query.plan)
    now_ns = 0
    for each in nodes:
        assert query.begin(now_ns) == planned[each.name]
        now_ns += data.draw(strategies.integers(0, 100 * MS))
