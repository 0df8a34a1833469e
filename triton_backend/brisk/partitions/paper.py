"""Flashpoint's own recurrence, and the planners that the paper compares with it, for comparison.

How each is read, and what is inferred since the paper does not say it:

*Flashpoint* (section 4.2.3, equation 4.10): for each run of segments i to j and number of cuts c,
the cheapest of the plan with c - 1 cuts and of all ways to join the best plan of i to k with that
of k + 1 to j. Only one plan is kept for each, with only its longest cold start (DC), run (DE), hop
(DN) and sum of hops (DIN). Inferred: runs are priced like whole models (4.7, 4.8), with
floor(P / p) groups of as many parts as they have; parts start as if each host had a source to
itself, as sections 4.1.2 and 4.1.3 demand. It is not exact, since the best plan of a model need
not consist of the best plans of its runs.

*Gillis* (Yu and others 2021; here by sections 3.3.1 and 8.1.1): "attempts to fit the memory limits
while minimizing network transfers", with "longer cold start durations". Read as: parts of at most
``limit_bytes`` of weights with the least sum of hops, for a request's latency without cold start
or pipeline. Inferred: of equal sums, the one of fewer parts.

*SerFer* (Kodandarama and others 2019; by the same sections): "solves for partitions that fit these
limitations with no consideration for the network transfer costs", "more partitions than Gillis and
Flashpoint". Inferred: the model is split into equal shares of its cold start, as near as segments
allow, into the fewest shares that each fit the limit.

Both limits are those of AWS Lambda then, 250 MB. All three give cuts; ``Pricing`` computes the
cost of all in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from brisk.errors import InvalidConfigurationError
from brisk.partitions.cost import PartitionPlan, Pricing, Turns
from brisk.partitions.network import HostNetwork
from brisk.partitions.profile import ModelProfile, SegmentProfile

LAMBDA_BYTES = 250_000_000


class _Best(NamedTuple):
    """The best plan of a run of segments: its value T, DC, max(DE, DN), DIN, and its cuts."""

    latency_s: float
    start_s: float
    step_s: float
    hops_s: float
    cuts: tuple[int, ...]


def published_cuts(pricing: Pricing, turns: Turns) -> tuple[int, ...]:
    """Return the cuts of (4.10), with at most as many parts as hosts. Time O(n^3 p^2)."""
    count, hosts = len(pricing.profile), len(pricing.network.hosts)
    most_cuts = pricing.most_parts - 1
    run_before_s = pricing.run_before_s
    hops_s = _hops_s(pricing) if most_cuts else ()
    starts = pricing.start_table(pricing.network.pulls(1)[0].mbit)
    best_of: dict[tuple[int, int, int], _Best] = {}

    def priced(
        first: int, end: int, start_s: float, step_s: float, sum_s: float, cuts: tuple[int, ...]
    ) -> _Best:
        waits = turns(max(hosts // (len(cuts) + 1), 1))
        run_s = run_before_s[end] - run_before_s[first]
        return _Best(start_s + waits * step_s + run_s + sum_s, start_s, step_s, sum_s, cuts)

    for length in range(1, count + 1):
        for first in range(count - length + 1):
            end = first + length
            whole_s = run_before_s[end] - run_before_s[first]
            best = priced(first, end, starts[first][end], whole_s, 0.0, ())
            best_of[first, end, 0] = best
            for cuts in range(1, most_cuts + 1):
                for middle in range(first + 1, end):
                    for cuts_before in range(cuts):
                        left = best_of[first, middle, cuts_before]
                        right = best_of[middle, end, cuts - 1 - cuts_before]
                        hop_s = hops_s[middle]
                        joined = priced(
                            first,
                            end,
                            start_s=max(left.start_s, right.start_s),
                            step_s=max(left.step_s, right.step_s, hop_s),
                            sum_s=left.hops_s + right.hops_s + hop_s,
                            cuts=(*left.cuts, middle, *right.cuts),
                        )
                        if joined.latency_s < best.latency_s:
                            best = joined
                best_of[first, end, cuts] = best
    return best_of[0, count, most_cuts].cuts


def published_plan(pricing: Pricing, turns: Turns) -> PartitionPlan:
    """Return the plan of the cuts of (4.10), in floor(P / p) groups as in (4.5)."""
    cuts = published_cuts(pricing, turns)
    return pricing.plan(cuts, pricing.most_groups(len(cuts) + 1))


def gillis_cuts(pricing: Pricing, limit_bytes: float = LAMBDA_BYTES) -> tuple[int, ...]:
    """Return Gillis's cuts: those of the least sum of hops, with parts of at most ``limit_bytes``
    of weights and no more parts than hosts.

    Raises InvalidConfigurationError if no cuts make parts of that size.
    """
    before, most_parts = pricing.profile.bytes_before(), pricing.most_parts
    hops_s = _hops_s(pricing) if most_parts > 1 else (0.0,) * len(before)
    count = len(pricing.profile)
    layer = {0: _Cuts(0.0, ())}
    best: _Cuts | None = None
    for _ in range(most_parts):
        reached: dict[int, _Cuts] = {}
        for first, (sum_s, cuts) in layer.items():
            extended = _Cuts(sum_s + hops_s[first], (*cuts, first)) if first else _Cuts(sum_s, ())
            for end in range(first + 1, count + 1):
                if before[end] - before[first] > limit_bytes:
                    break
                if end not in reached or extended.hops_s < reached[end].hops_s:
                    reached[end] = extended
        layer = reached
        if count in layer and (best is None or layer[count].hops_s < best.hops_s):
            best = layer[count]
    if best is None:
        raise InvalidConfigurationError(
            f"no {most_parts} parts hold at most {limit_bytes / 1e6:g} MB each"
        )
    return best.cuts


class _Cuts(NamedTuple):
    """The cuts of a model's beginning, and the sum of their hops."""

    hops_s: float
    cuts: tuple[int, ...]


def serfer_cuts(pricing: Pricing, limit_bytes: float = LAMBDA_BYTES) -> tuple[int, ...]:
    """Return SerFer's cuts: the fewest equal shares of the cold start of which each has at most
    ``limit_bytes`` of weights.

    Raises InvalidConfigurationError if no number of shares is enough.
    """
    before = pricing.profile.bytes_before()
    for parts in range(1, pricing.most_parts + 1):
        cuts = equal_cuts(pricing, parts)
        borders = (0, *cuts, len(pricing.profile))
        sizes = [before[end] - before[first] for first, end in pairwise(borders)]
        if max(sizes) <= limit_bytes:
            return cuts
    raise InvalidConfigurationError(
        f"no {pricing.most_parts} equal shares hold at most {limit_bytes / 1e6:g} MB each"
    )


def equal_cuts(pricing: Pricing, parts: int) -> tuple[int, ...]:
    """Return the cuts nearest to equal shares of one host's cold start; each part has at least
    one segment."""
    count = len(pricing.profile)
    row = pricing.start_table(pricing.network.pulls(1)[0].mbit)[0]
    cuts: list[int] = []
    for number in range(1, parts):
        lowest = (cuts[-1] if cuts else 0) + 1
        ends = range(lowest, count - (parts - number) + 1)
        cuts.append(min(ends, key=lambda end: abs(row[end] - row[count] * number / parts)))
    return tuple(cuts)


def unpipelined_latency_s(plan: PartitionPlan, turns: Turns) -> float:
    """Return ``PartitionPlan.latency_s`` without a pipeline (Fig. 4.3): requests wait for whole
    requests, not for the slowest step."""
    return plan.cost.first_answer_s + plan.cost.request_s * turns(plan.groups)


def worked_example() -> Pricing:
    """Return the example of section 4.1.3 (Figs. 4.2 to 4.4), which its text gives completely: on
    2 devices, a request of 4 s, a cold start of 24 s, two equal parts, a hop of 1 s."""
    half = SegmentProfile(weight_bytes=0, run_s=2.0, live_bytes=125_000_000, load_s=12.0)
    last = SegmentProfile(weight_bytes=0, run_s=2.0, live_bytes=0, load_s=12.0)
    links = HostNetwork.alike(2, link_mbit=1000, registry_mbit=math.inf)
    network = HostNetwork(links.hosts, links.registry_mbit, hop_latency_s=0.0)
    return Pricing(ModelProfile((half, last)), network)


class TradeOff(NamedTuple):
    """A point of Fig. 4.5: what parts save in cold start, and cost in requests."""

    parts: int
    speed_up: float
    """What parts save in cold start: C(1) / C(p)."""
    inference_cost: float
    """What parts cost in a request: IN / I(1)."""


def trade_offs(plans: Sequence[PartitionPlan]) -> list[TradeOff]:
    """Return the trade-off of each plan against the first, which is the uncut model."""
    whole_s = plans[0].cost.cold_start_s
    return [
        TradeOff(
            plan.parts,
            whole_s / plan.cost.cold_start_s,
            plan.cost.hops_s / plan.cost.run_s,
        )
        for plan in plans
    ]


def _hops_s(pricing: Pricing) -> tuple[float, ...]:
    """Return the hop times between the first two hosts, by cut."""
    mbit = pricing.network.hop_mbit(0, 1)
    return (0.0, *(pricing.hop_s(border, mbit) for border in range(1, len(pricing.profile) + 1)))
