"""Flashpoint's figures and recurrence, Gillis and SerFer, beside the exact planner."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest

from brisk.errors import InvalidConfigurationError
from brisk.partitions.cost import Pricing, mean_turns, turns_of
from brisk.partitions.paper import (
    equal_cuts,
    gillis_cuts,
    published_cuts,
    published_plan,
    serfer_cuts,
    trade_offs,
    unpipelined_latency_s,
    worked_example,
)
from brisk.partitions.plan import best_plan, best_plans
from brisk.partitions.profile import ModelProfile, SegmentProfile
from support.partitions.instances import (
    PAPER_MODELS,
    REQUESTS,
    T5_HOPS_SHARE,
    T5_LAYER_START_S,
    T5_START_S,
    paper_model,
    random_profile,
    random_turns,
    t5,
    unshared,
    without_answers,
)

EIGHT = partial(mean_turns, 8)


def test_eight_requests_on_two_devices_take_what_the_worked_example_says() -> None:
    """Figs. 4.2, 4.3 and 4.4: 34 s whole, 34.5 s in parts, 24 s in parts that are pipelined."""
    pricing = worked_example()
    whole, parted = best_plans(pricing, EIGHT)
    assert (whole.groups, parted.groups, parted.cuts) == (2, 1, (1,))
    assert whole.latency_s(EIGHT) == 34
    assert unpipelined_latency_s(parted, EIGHT) == 34.5
    assert parted.latency_s(EIGHT) == 24
    assert best_plan(pricing, EIGHT) == parted
    assert published_plan(pricing, EIGHT) == parted


def test_each_request_of_the_worked_example_ends_when_it_says() -> None:
    """The sum under Fig. 4.4, behind 12 s of cold start."""
    parted = worked_example().plan((1,))
    ends_s = [parted.latency_s(partial(turns_of, number)) - 12 for number in range(1, 9)]
    assert ends_s == [5, 7, 9, 11, 13, 15, 17, 19]


def test_the_recurrence_is_never_better_and_sometimes_worse() -> None:
    """(4.10), where all is as it assumes: own sources, free answers, the mean of 1 to x."""
    source = random.Random(410)
    ratios: list[float] = []
    for _ in range(400):
        profile = without_answers(random_profile(source, source.randint(2, 8)))
        pricing = Pricing(profile, unshared(source.randint(2, 8)))
        turns = partial(mean_turns, source.choice(REQUESTS))
        published_s = published_plan(pricing, turns).latency_s(turns)
        ratios.append(published_s / best_plan(pricing, turns).latency_s(turns))
    assert min(ratios) >= 1 - 1e-9
    assert max(ratios) > 1.01, "it keeps one plan for each run of segments"
    assert sum(ratio > 1 + 1e-9 for ratio in ratios) < len(ratios) / 2


def test_the_recurrence_is_no_better_on_any_network_either() -> None:
    source = random.Random(411)
    for _ in range(150):
        profile = random_profile(source, source.randint(2, 6))
        pricing = Pricing(profile, unshared(source.randint(2, 4), 200))
        turns = random_turns(source)
        best_s = best_plan(pricing, turns).latency_s(turns)
        assert published_plan(pricing, turns).latency_s(turns) >= best_s * (1 - 1e-9)


def test_parts_start_sooner_and_requests_take_longer_as_figure_4_5_has_it() -> None:
    """T5-3B: 44.10 times as soon for 43.94 % at 55 parts; in between nearly as many times as
    parts, for a cost that grows by the hop.
    """
    profile = t5()
    points = trade_offs(best_plans(Pricing(profile, unshared(55, 1000)), partial(turns_of, 1)))
    assert [point.parts for point in points] == list(range(1, 56))
    assert points[0] == (1, 1.0, 0.0)
    assert points[-1].speed_up == pytest.approx(T5_START_S / T5_LAYER_START_S)
    assert points[-1].speed_up == pytest.approx(44.10, abs=0.005)
    assert points[-1].inference_cost == pytest.approx(T5_HOPS_SHARE, rel=1e-4)
    for before, point in pairwise(points):
        assert point.speed_up >= before.speed_up
        assert point.speed_up <= point.parts + 1e-9
        hop_cost = point.inference_cost - before.inference_cost
        assert hop_cost == pytest.approx(T5_HOPS_SHARE / 54, rel=1e-4)
    assert all(point.speed_up > 0.9 * point.parts for point in points[:8])


@pytest.mark.parametrize("name", PAPER_MODELS)
def test_planners_stand_in_the_order_of_figure_8_1(name: str) -> None:
    """The exact plan is best at every x; Gillis has fewest parts, SerFer as many or more."""
    profile = paper_model(name)
    hosts = min(len(profile), 64)
    pricing = Pricing(profile, unshared(hosts, 2000))
    limit = max(250e6, 1.01 * max(each.weight_bytes for each in profile.segments))
    gillis, serfer = gillis_cuts(pricing, limit), serfer_cuts(pricing, limit)
    assert len(gillis) <= len(serfer)
    for requests in (1, 30, 1000):
        turns = partial(mean_turns, requests)
        best_s = best_plan(pricing, turns).latency_s(turns)
        for cuts in (gillis, serfer):
            plan = pricing.plan(cuts, pricing.most_groups(len(cuts) + 1))
            assert best_s <= plan.latency_s(turns) * (1 + 1e-9)


def test_a_model_of_wide_cuts_is_not_parted_for_many_requests_as_albert_is_not() -> None:
    """Section 8.1.1: the baselines cut it all the same, and are worse than whole replicas."""
    layer = SegmentProfile(74_000_000, 0.001, 4_000_000, 0.17)
    pricing = Pricing(without_answers(ModelProfile((layer,) * 12)), unshared(12, 2000))
    one, many = (partial(mean_turns, x) for x in (1, 3000))
    assert best_plan(pricing, one).parts > 1
    whole = best_plan(pricing, many)
    assert whole.parts == 1
    for cuts in (gillis_cuts(pricing), serfer_cuts(pricing)):
        plan = pricing.plan(cuts, pricing.most_groups(len(cuts) + 1))
        assert plan.parts > 1
        assert plan.latency_s(many) > whole.latency_s(many)


def test_gillis_takes_the_cheapest_cuts_that_fit() -> None:
    sizes, lives = (100, 100, 100, 100), (9, 1, 5, 0)
    profile = ModelProfile(
        tuple(
            SegmentProfile(size * 10**6, 0.01, live * 10**6, 0.01)
            for size, live in zip(sizes, lives, strict=True)
        )
    )
    pricing = Pricing(profile, unshared(4))
    assert gillis_cuts(pricing) == (2,)
    assert gillis_cuts(pricing, 300e6) == (2,)
    assert gillis_cuts(pricing, 400e6) == ()
    assert gillis_cuts(pricing, 100e6) == (1, 2, 3)


def test_serfer_cuts_equal_shares_whatever_crosses() -> None:
    sizes, lives = (100, 100, 100, 100), (1, 9, 1, 0)
    profile = ModelProfile(
        tuple(
            SegmentProfile(size * 10**6, 0.01, live * 10**6, 0.01)
            for size, live in zip(sizes, lives, strict=True)
        )
    )
    pricing = Pricing(profile, unshared(4))
    assert serfer_cuts(pricing) == (2,)
    assert equal_cuts(pricing, 4) == (1, 2, 3)
    assert equal_cuts(pricing, 1) == ()


@pytest.mark.parametrize("planner", [gillis_cuts, serfer_cuts])
def test_a_limit_that_no_parts_keep_is_named(planner: Callable[..., object]) -> None:
    pricing = Pricing(paper_model("CodeBERT"), unshared(2))
    with pytest.raises(InvalidConfigurationError, match="hold at most 1 MB each"):
        planner(pricing, 1e6)


def test_the_recurrence_leaves_a_model_whole_on_one_host() -> None:
    pricing = Pricing(paper_model("CodeBERT"), unshared(1))
    assert published_cuts(pricing, EIGHT) == ()
