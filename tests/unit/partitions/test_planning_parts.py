"""The planner against brute force, and where parts cannot pay."""

from __future__ import annotations

import ast
import random
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies

import brisk.partitions
from brisk.partitions.brute import brute_plans
from brisk.partitions.cost import Pricing, expected_turns, mean_turns, turns_of
from brisk.partitions.network import HostNetwork, LinkedHost
from brisk.partitions.plan import best_plan, best_plans, useful_groups
from brisk.partitions.profile import ModelProfile, SegmentProfile
from support.partitions.instances import random_network, random_pricing, random_profile
from support.partitions.instances import random_turns as some_turns

NEXT = partial(turns_of, 1)
MODEL = ModelProfile(tuple(SegmentProfile(10_000_000, 0.01, 200_000, 0.002) for _ in range(8)))


def test_each_number_of_parts_has_the_plan_that_brute_force_finds() -> None:
    source = random.Random(20230908)
    several = parted = 0
    for number in range(1000):
        pricing, turns = random_pricing(source, 8, 6), some_turns(source)
        expected = brute_plans(pricing, turns)
        plans = best_plans(pricing, turns)
        assert [plan.parts for plan in plans] == [plan.parts for plan in expected]
        for one, other in zip(plans, expected, strict=True):
            assert one.latency_s(turns) == pytest.approx(other.latency_s(turns), rel=1e-9), number
            several += one.groups > 1
        best = best_plan(pricing, turns)
        assert best.latency_s(turns) == min(plan.latency_s(turns) for plan in plans)
        parted += best.parts > 1
    assert several > 500
    assert 200 < parted < 900


@settings(max_examples=60, deadline=None)
@given(strategies.integers(0, 2**32), strategies.integers(1, 40))
def test_more_hosts_are_never_worse(seed: int, requests: int) -> None:
    source = random.Random(seed)
    profile, network = random_profile(source, 7), random_network(source, 5)
    turns = partial(mean_turns, requests)
    fewer = replace(network, hosts=network.hosts[:4])
    before = best_plan(Pricing(profile, fewer), turns)
    # a host with a copy is a source, so that of the fewer it is kept as a peer
    if network.hosts[4].has_copy:
        return
    assert best_plan(Pricing(profile, network), turns).latency_s(turns) <= before.latency_s(turns)


@pytest.mark.parametrize("registry_mbit", [500, 250])
def test_one_host_is_best_where_all_pull_from_one_uplink(registry_mbit: float) -> None:
    pricing = Pricing(MODEL, HostNetwork.alike(8, 500, registry_mbit))
    plans = best_plans(pricing, NEXT)
    assert len(plans) == 8
    assert best_plan(pricing, NEXT) == plans[0]
    assert all(plan.cost.first_answer_s > plans[0].cost.first_answer_s for plan in plans[1:])


def test_one_host_is_best_where_it_has_a_copy() -> None:
    hosts = (LinkedHost(500, has_copy=True), *[LinkedHost(500)] * 3)
    best = best_plan(Pricing(MODEL, HostNetwork(hosts, 2000)), NEXT)
    assert best.parts == 1
    assert best.cost.cold_start_s == pytest.approx(8 * 0.002)


def test_one_host_is_best_where_cuts_cost_more_than_bytes_do() -> None:
    wide = [replace(each, live_bytes=40_000_000) for each in MODEL.segments]
    network = HostNetwork.alike(4, 500, 2000)
    assert best_plan(Pricing(MODEL, network), NEXT).parts == 4
    assert best_plan(Pricing(ModelProfile(tuple(wide)), network), NEXT).parts == 1


def test_as_many_hosts_as_the_registry_feeds_are_best() -> None:
    best = best_plan(Pricing(MODEL, HostNetwork.alike(8, 500, 1000)), NEXT)
    assert best.parts == 2
    assert best.cuts == (4,)


def test_a_part_that_is_most_of_the_model_leaves_nothing_to_more_hosts() -> None:
    """An encoder's table is such a part: its own bytes bound the start of any plan."""
    table = replace(MODEL.segments[0], weight_bytes=80_000_000)
    pricing = Pricing(ModelProfile((table, *MODEL.segments[1:])), HostNetwork.alike(8, 500, 9000))
    best = best_plan(pricing, NEXT)
    assert best.parts == 2
    assert best.cuts == (1,)


def test_a_single_segment_is_planned_for_a_single_host() -> None:
    pricing = Pricing(ModelProfile(MODEL.segments[:1]), HostNetwork.alike(4, 500, 2000))
    (plan,) = best_plans(pricing, NEXT)
    assert plan.cuts == ()


def test_one_request_wakes_no_second_group_and_many_wake_all_that_cost_nothing() -> None:
    pricing = Pricing(MODEL, HostNetwork.alike(8, 500, 1e6))
    assert best_plans(pricing, NEXT)[0].groups == 1
    assert best_plans(pricing, partial(mean_turns, 100))[0].groups == 8
    assert useful_groups(pricing, 2, partial(turns_of, 3)) == [3]


def test_groups_are_fewer_where_their_downloads_hold_each_other_up() -> None:
    """A second group halves what each host gets of the registry, for one turn less."""
    pricing = Pricing(MODEL, HostNetwork.alike(2, 500, 500))
    assert best_plans(pricing, partial(turns_of, 2))[0].groups == 1
    assert best_plans(pricing, partial(turns_of, 2000))[0].groups == 2


def test_the_best_number_of_parts_is_chosen_for_requests_as_probable_as_they_are() -> None:
    """(4.9): the best for the mean is no worse than the best for one x, and may be another."""
    source = random.Random(5)
    pricing = Pricing(random_profile(source, 8), HostNetwork.alike(4, 500, 1500))
    turns = partial(expected_turns, {0: 0.5, 1: 0.2, 40: 0.3})
    best = best_plan(pricing, turns)
    for x in (1, 40):
        other = best_plan(pricing, partial(mean_turns, x))
        assert best.latency_s(turns) <= other.latency_s(turns)


@pytest.mark.timing
@pytest.mark.beside  # what is compared is this process's own time on a core
@pytest.mark.parametrize("requests", [1, 8, 1000])
def test_116_segments_on_8_hosts_are_planned_in_time(requests: int) -> None:
    """0.1 to 0.5 s here on a core."""
    pricing = Pricing(random_profile(random.Random(3), 116), HostNetwork.alike(8, 500, 2000))
    started_s = time.process_time()
    plans = best_plans(pricing, partial(turns_of, requests))
    assert time.process_time() - started_s <= 2
    assert [plan.parts for plan in plans] == list(range(1, 9))


def test_the_planner_needs_the_standard_library_alone() -> None:
    allowed = {*sys.stdlib_module_names, "brisk"}
    for file in Path(brisk.partitions.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            modules = [alias.name for alias in getattr(node, "names", [])]
            if isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            elif not isinstance(node, ast.Import):
                continue
            assert {each.split(".")[0] for each in modules} <= allowed, file.name
