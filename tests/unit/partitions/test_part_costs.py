"""The costs of parts: Flashpoint's equations, and the rates that hosts get."""

from __future__ import annotations

import itertools
import math
from functools import partial

import pytest

from brisk.errors import InvalidConfigurationError, InvalidModelError
from brisk.partitions.cost import ColdStart, Pricing, expected_turns, mean_turns, turns_of
from brisk.partitions.network import OWN_COPY, REGISTRY, HostNetwork, LinkedHost, Pull, transfer_s
from brisk.partitions.profile import ModelProfile, SegmentProfile

MODEL = ModelProfile(
    (
        SegmentProfile(10_000_000, 0.010, 1_000_000, 0.002),
        SegmentProfile(30_000_000, 0.030, 500_000, 0.004),
        SegmentProfile(20_000_000, 0.020, 4_000, 0.001),
    )
)


@pytest.mark.parametrize("groups", [1, 2, 3, 8])
def test_the_mean_wait_is_the_mean_of_the_waits(groups: int) -> None:
    """(4.8) against (4.5), and (4.9) against (4.8)."""
    for requests in range(1, 40):
        waits = [math.ceil(x / groups) - 1 for x in range(1, requests + 1)]
        assert turns_of(requests, groups) == waits[-1]
        assert mean_turns(requests, groups) == pytest.approx(sum(waits) / requests)
    expected = (0.2 * mean_turns(3, groups) + 0.4 * mean_turns(17, groups)) / 0.6
    assert expected_turns({0: 0.4, 3: 0.2, 17: 0.4}, groups) == pytest.approx(expected)


def test_waits_of_nobody_are_refused() -> None:
    with pytest.raises(InvalidConfigurationError, match="no number of requests from 1 on"):
        expected_turns({0: 1.0}, 1)


def test_a_plan_costs_what_its_equations_say() -> None:
    pricing = Pricing(MODEL, HostNetwork.alike(4, 100, 1000))
    plan = pricing.plan((1,), groups=2)
    cost = plan.cost
    hop_s, back_s = 0.08 + 0.0003, 0.00032 + 0.0003
    assert cost.cold_start_s == pytest.approx(4.0 + 0.001)  # the last segment's after all bytes
    assert cost.longest_run_s == pytest.approx(0.05)
    assert cost.run_s == pytest.approx(0.06)
    assert cost.longest_hop_s == pytest.approx(hop_s)
    assert cost.hops_s == pytest.approx(hop_s + back_s)
    assert cost.request_s == pytest.approx(0.06 + hop_s + back_s)
    assert plan.latency_s(partial(turns_of, 5)) == pytest.approx(
        cost.cold_start_s + 2 * hop_s + cost.request_s
    )


def test_one_host_hands_nothing_on() -> None:
    cost = Pricing(MODEL, HostNetwork.alike(1, 100, 1000)).plan(()).cost
    assert (cost.hops_s, cost.longest_hop_s) == (0.0, 0.0)
    assert cost.request_s == MODEL.run_s


def test_sessions_are_made_while_later_bytes_come() -> None:
    """Each behind its bytes and the session before it, as a lane makes them."""
    slow = ModelProfile((SegmentProfile(10**6, 0, 0, 0.5), SegmentProfile(10**6, 0, 0, 0.25)))
    table = Pricing(slow, HostNetwork.alike(1, 8, 8)).start_table(8)
    assert table[0][2] == pytest.approx(max(1 + 0.5, 2) + 0.25)
    assert table[1][2] == pytest.approx(1.25)
    instant = Pricing(slow, HostNetwork.alike(1, 8, 8)).start_table(math.inf)
    assert instant[0][2] == pytest.approx(0.75)


def test_equal_shares_are_the_papers_whatever_the_cuts() -> None:
    """(4.6)."""
    pricing = Pricing(MODEL, HostNetwork.alike(3, 100, 100), ColdStart.EQUAL_SHARES)
    whole_s = pricing.plan(()).cost.cold_start_s
    assert whole_s == pytest.approx(60e6 * 8 / 100e6 + 0.001)
    for cuts in itertools.chain([(1,), (2,)], [(1, 2)]):
        assert pricing.plan(cuts).cost.cold_start_s == pytest.approx(whole_s / (len(cuts) + 1))


@pytest.mark.parametrize(
    ("network", "expected"),
    [
        (HostNetwork.alike(2, 500, 2000), [Pull(REGISTRY, 500, 2, False)] * 2),
        (HostNetwork.alike(4, 500, 1000), [Pull(REGISTRY, 250, 4, True)] * 4),
        (
            HostNetwork((LinkedHost(100), LinkedHost(900), LinkedHost(900)), 1100),
            [Pull(REGISTRY, 100, 3, False), *[Pull(REGISTRY, 500, 3, True)] * 2],
        ),
        (
            HostNetwork((LinkedHost(500),) * 3, 500, peers_mbit=(500,)),
            [
                Pull("peer 1", 250, 2, True),
                Pull(REGISTRY, 500, 1, False),
                Pull("peer 1", 250, 2, True),
            ],
        ),
        (
            HostNetwork((LinkedHost(500), LinkedHost(800, has_copy=True)), 200),
            [Pull("host 2", 500, 1, False), Pull(OWN_COPY, math.inf, 1, False)],
        ),
    ],
    ids=["own links", "one uplink", "slow link", "a peer", "a copy"],
)
def test_hosts_that_pull_at_once_share_uplinks(network: HostNetwork, expected: list[Pull]) -> None:
    assert list(network.pulls(len(network.hosts))) == expected


def test_no_source_gives_more_than_its_uplink() -> None:
    for hosts, registry_mbit in itertools.product(range(1, 9), (100, 333, 5000)):
        links = tuple(LinkedHost(100 * (1 + index % 3)) for index in range(hosts))
        network = HostNetwork(links, registry_mbit, peers_mbit=(250,))
        uplinks: dict[str, float] = {}
        for host, pull in zip(links, network.pulls(hosts), strict=True):
            assert pull.mbit <= host.link_mbit
            uplinks[pull.source] = uplinks.get(pull.source, 0) + pull.mbit
        assert uplinks.get(REGISTRY, 0) <= registry_mbit + 1e-9
        assert uplinks.get("peer 1", 0) <= 250 + 1e-9


@pytest.mark.parametrize(
    ("link_mbit", "registry_mbit", "load_s", "by"),
    [(100, 2000, 0.0, "link"), (2000, 100, 0.0, "source"), (2000, 2000, 9.0, "sessions")],
)
def test_what_the_start_waits_for_is_told(
    link_mbit: float, registry_mbit: float, load_s: float, by: str
) -> None:
    profile = ModelProfile((SegmentProfile(10**7, 0, 0, 0.0), SegmentProfile(10**8, 0, 0, load_s)))
    pricing = Pricing(profile, HostNetwork.alike(2, link_mbit, registry_mbit))
    assert pricing.start_bound(pricing.plan((1,))) == (1, by)


def test_of_groups_the_slowest_host_counts() -> None:
    hosts = (LinkedHost(500), LinkedHost(500), LinkedHost(500), LinkedHost(50))
    pricing = Pricing(MODEL, HostNetwork(hosts, 5000))
    assert [pull.mbit for pull in pricing.pulls(2, 1)] == [500, 500]
    assert [pull.mbit for pull in pricing.pulls(2, 2)] == [500, 50]


@pytest.mark.parametrize(
    ("cuts", "groups", "text"),
    [
        ((0,), 1, r"cuts at \(0,\); expected ascending numbers from 1 to 2"),
        ((3,), 1, "from 1 to 2"),
        ((2, 1), 1, "ascending"),
        ((1,), 2, "2 groups of 2 hosts; expected at least one group and at most 3 hosts"),
        ((), 0, "0 groups"),
    ],
)
def test_plans_that_cannot_be_are_refused(cuts: tuple[int, ...], groups: int, text: str) -> None:
    pricing = Pricing(MODEL, HostNetwork.alike(3, 500, 500))
    with pytest.raises(InvalidConfigurationError, match=text):
        pricing.plan(cuts, groups)


def test_profiles_and_networks_of_nothing_are_refused() -> None:
    with pytest.raises(InvalidModelError, match="no segments"):
        ModelProfile(())
    with pytest.raises(InvalidModelError, match=r"segment 1: .* expected finite numbers from 0"):
        ModelProfile((MODEL.segments[0], SegmentProfile(1, math.nan, 1, 1)))
    with pytest.raises(InvalidConfigurationError, match="no hosts"):
        HostNetwork.alike(0, 500, 500)
    for link_mbit in (0, -1, math.nan, math.inf):
        with pytest.raises(InvalidConfigurationError, match="finite rates above 0"):
            HostNetwork.alike(1, link_mbit, 500)
    with pytest.raises(InvalidConfigurationError, match="the registry's first"):
        HostNetwork.alike(1, 500, 0)
    with pytest.raises(InvalidConfigurationError, match="hops of -1 s"):
        HostNetwork((LinkedHost(1),), 1, hop_latency_s=-1)


def test_bytes_take_eight_bits_each() -> None:
    assert transfer_s(125_000_000, 1000) == 1.0
    assert transfer_s(1, math.inf) == 0.0
