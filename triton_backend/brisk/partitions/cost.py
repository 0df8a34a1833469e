"""The cost of a plan of parts: Flashpoint's equations (4.1) to (4.9), with the network in them.

A plan cuts a model's segments into p parts, one for each host of a group; P hosts are enough for
floor(P / p) such groups. With C the longest cold start of a part, E and N the longest run and hop,
IN the sum of hops:

    I(p) = I(1) + IN                                        a request without waiting        (4.2)
    W = max(E, N) * (ceil(x / groups) - 1)                  the wait of request x            (4.5)
    T = C + W + I(p)                                        from cold to its answer          (4.7)

With one group (4.5) is (4.3), and without C (4.7) is (4.1) and (4.4). Only one number depends on
x, ``turns``: how often a request waits for the slowest step. It is that of request x
(``turns_of``), the mean of requests 1 to x (4.8, ``mean_turns``), or that mean for a random x
(4.9, ``expected_turns``).

The paper takes C(p) = C(1) / p (4.6), which no set of parts reaches and no shared uplink allows.
Here C is the time of the bytes to the slowest host (``HostNetwork.pulls``), whose sessions one
loader thread makes in order as their bytes arrive. So T counts a host as started with its last
session, though it may run as its bytes arrive: for one host T is up to I(1) too late, never too
early.

Two things go beyond the paper: answers travel back from the last host to the first, and fewer
groups than fit may start, if more would only share the registry's uplink.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from brisk.errors import InvalidConfigurationError
from brisk.partitions.network import HostNetwork, Pull, transfer_s
from brisk.partitions.profile import ModelProfile

Turns = Callable[[int], float]
"""Returns how often a request waits for the slowest step, by the number of groups."""

StartTable = list[list[float]]
"""The seconds until a part is started, by its first segment and the cut behind its last one;
infinite if no segment lies between them."""


def turns_of(request: int, groups: int) -> float:
    """Return the turns of request number ``request``, counted from 1 (4.5)."""
    return -(-request // groups) - 1


def mean_turns(requests: int, groups: int) -> float:
    """Return the mean turns of requests 1 to ``requests`` (4.8)."""
    rounds, rest = divmod(requests, groups)
    return (groups * rounds * (rounds - 1) / 2 + rest * rounds) / requests


def expected_turns(probabilities: Mapping[int, float], groups: int) -> float:
    """Return the expected ``mean_turns`` if x requests wait with ``probabilities[x]`` (4.9).

    x = 0 is left out: then no request waits. Raises InvalidConfigurationError if no x from 1 on
    has a probability.
    """
    likely = {requests: each for requests, each in probabilities.items() if requests > 0}
    weight = sum(likely.values())
    if not weight > 0:
        raise InvalidConfigurationError("no number of requests from 1 on has a probability")
    return sum(each * mean_turns(x, groups) for x, each in likely.items()) / weight


class ColdStart(Enum):
    """The model of how long parts take to start: by the network's flows, or C(1) / p (4.6)."""

    FLOWS = "flows"
    EQUAL_SHARES = "equal shares"


@dataclass(frozen=True, slots=True)
class PlanCost:
    """The cost of a plan, in seconds."""

    cold_start_s: float
    """The longest cold start of a part: C."""
    longest_run_s: float
    """The longest run of a part: E."""
    longest_hop_s: float
    """The longest hop: N."""
    hops_s: float
    """The sum of the hops: IN."""
    run_s: float
    """The run of the whole model on one host: I(1)."""

    @property
    def slowest_step_s(self) -> float:
        """The interval of pipelined requests: max(E, N)."""
        return max(self.longest_run_s, self.longest_hop_s)

    @property
    def request_s(self) -> float:
        """The time of a request to started hosts without waiting: I(p) (4.2)."""
        return self.run_s + self.hops_s

    @property
    def first_answer_s(self) -> float:
        """The time from cold to the first answer: (4.7) with x = 1."""
        return self.cold_start_s + self.request_s

    def latency_s(self, turns: float) -> float:
        """Return the time from cold to the answer of a request that waits ``turns`` times for the
        slowest step (4.7)."""
        return self.first_answer_s + self.slowest_step_s * turns


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """A plan of parts: host ``group * parts + part`` runs part number ``part``."""

    cuts: tuple[int, ...]
    """The first segment of each part but the first, ascending."""
    groups: int
    """The number of groups of hosts that start."""
    cost: PlanCost

    @property
    def parts(self) -> int:
        return len(self.cuts) + 1

    def latency_s(self, turns: Turns) -> float:
        return self.cost.latency_s(turns(self.groups))


class StartBound(NamedTuple):
    """The bottleneck of a plan's start.

    ``part``: the part that starts last. ``by``: its host's ``link``, the uplink of its ``source``,
    or its ``sessions``.
    """

    part: int
    by: str


@dataclass(frozen=True, slots=True)
class GroupPrices:
    """The costs of parts in the slowest of some groups of hosts."""

    starts: tuple[StartTable, ...]
    """The table of each part."""
    hops_s: tuple[tuple[float, ...], ...]
    """The hop of each part, by the cut behind it; for the last part of several, the way of the
    answers to the first host."""
    fastest: StartTable
    """A lower bound of the tables of all parts."""


class Pricing:
    """The prices of plans for one model on one network, with cached tables. Not thread-safe."""

    def __init__(
        self,
        profile: ModelProfile,
        network: HostNetwork,
        cold_start: ColdStart = ColdStart.FLOWS,
    ) -> None:
        self.profile = profile
        self.network = network
        self.cold_start = cold_start
        self.run_before_s = profile.run_before_s()
        self._tables: dict[float, StartTable] = {}

    @property
    def most_parts(self) -> int:
        return min(len(self.network.hosts), len(self.profile))

    def most_groups(self, parts: int) -> int:
        """Return how many groups of so many parts the hosts are enough for: floor(P / p)."""
        return len(self.network.hosts) // parts

    def pulls(self, parts: int, groups: int) -> tuple[Pull, ...]:
        """Return the slowest pull over all groups, by part."""
        hosts = self.network.pulls(parts * groups)
        return tuple(min(hosts[part::parts], key=lambda pull: pull.mbit) for part in range(parts))

    def rates(self, parts: int, groups: int) -> tuple[Sequence[float], Sequence[float]]:
        """Return the rates in Mbit/s that prices depend on, each by part: of pulling its bytes
        (empty for equal shares), and of the hop behind it."""
        network = self.network
        hops = [
            min(
                network.hop_mbit(group * parts + part, group * parts + (part + 1) % parts)
                for group in range(groups)
            )
            for part in range(parts)
        ]
        if self.cold_start is ColdStart.EQUAL_SHARES:
            return (), hops
        return [pull.mbit for pull in self.pulls(parts, groups)], hops

    def prices(self, parts: int, groups: int) -> GroupPrices:
        pulls, hops = self.rates(parts, groups)
        count = len(self.profile)
        if self.cold_start is ColdStart.EQUAL_SHARES:
            fastest = [[self._whole_start_s / parts] * (count + 1)] * count
            starts: tuple[StartTable, ...] = (fastest,) * parts
        else:
            fastest = self.start_table(max(pulls))
            starts = tuple(map(self.start_table, pulls))
        return GroupPrices(
            starts,
            tuple(self._hops_s(mbit, part, parts) for part, mbit in enumerate(hops)),
            fastest,
        )

    def plan(self, cuts: tuple[int, ...], groups: int = 1) -> PartitionPlan:
        """Return the plan of these cuts with its cost.

        Raises InvalidConfigurationError if the cuts do not fit the model, or the network has too
        few hosts.
        """
        parts, count = len(cuts) + 1, len(self.profile)
        borders = (0, *cuts, count)
        spans = list(pairwise(borders))
        if any(first >= end for first, end in spans):
            raise InvalidConfigurationError(
                f"cuts at {cuts}; expected ascending numbers from 1 to {count - 1}"
            )
        if not 1 <= groups <= self.most_groups(parts):
            raise InvalidConfigurationError(
                f"{groups} groups of {parts} hosts; expected at least one group and at most "
                f"{len(self.network.hosts)} hosts"
            )
        prices = self.prices(parts, groups)
        hops = [prices.hops_s[part][end] for part, (_, end) in enumerate(spans)]
        runs_s = [self.run_before_s[end] - self.run_before_s[first] for first, end in spans]
        cost = PlanCost(
            cold_start_s=max(
                prices.starts[part][first][end] for part, (first, end) in enumerate(spans)
            ),
            longest_run_s=max(runs_s),
            longest_hop_s=max(hops),
            hops_s=sum(hops),
            run_s=self.run_before_s[-1],
        )
        return PartitionPlan(cuts, groups, cost)

    def start_bound(self, plan: PartitionPlan) -> StartBound:
        """Return the bottleneck of the plan's start, always by the network's flows."""
        before, segments = self.profile.bytes_before(), self.profile.segments
        spans = list(pairwise((0, *plan.cuts, len(segments))))
        pulls = self.pulls(plan.parts, plan.groups)

        def start_s(part: int) -> float:
            first, end = spans[part]
            return self.start_table(pulls[part].mbit)[first][end]

        part = max(range(plan.parts), key=start_s)
        first, end = spans[part]
        bytes_s = transfer_s(before[end] - before[first], pulls[part].mbit)
        if sum(each.load_s for each in segments[first:end]) > bytes_s:
            return StartBound(part, "sessions")
        return StartBound(part, "source" if pulls[part].is_full else "link")

    def start_table(self, mbit: float) -> StartTable:
        """Return the start times of parts on a host that gets bytes at this rate.

        A session is made once its bytes have arrived and the one before is made: ready(j) =
        max(ready(j - 1), bytes up to j / rate) + load(j).
        """
        if (cached := self._tables.get(mbit)) is not None:
            return cached
        segments, before = self.profile.segments, self.profile.bytes_before()
        table = []
        for first in range(len(segments)):
            row, ready_s = [math.inf] * (first + 1), 0.0
            for index in range(first, len(segments)):
                there_s = transfer_s(before[index + 1] - before[first], mbit)
                ready_s = max(ready_s, there_s) + segments[index].load_s
                row.append(ready_s)
            table.append(row)
        self._tables[mbit] = table
        return table

    @cached_property
    def run_table(self) -> list[list[float]]:
        """The seconds of a run of a part, indexed like ``StartTable``."""
        before_s = self.run_before_s
        return [[end_s - begin_s for end_s in before_s] for begin_s in before_s[:-1]]

    @cached_property
    def _whole_start_s(self) -> float:
        """The start time of one host that pulls the whole model alone: C(1)."""
        return self.start_table(self.network.pulls(1)[0].mbit)[0][-1]

    def _hops_s(self, mbit: float, part: int, parts: int) -> tuple[float, ...]:
        """Return the hop times by the cut behind the part; infinite if the part cannot end
        there."""
        count = len(self.profile)
        if parts == 1:
            return (0.0,) * (count + 1)
        hops = [self.hop_s(end, mbit) for end in range(1, count + 1)]
        if part == parts - 1:
            return (math.inf,) * count + (hops[-1],)
        return (math.inf, *hops[:-1], math.inf)

    def hop_s(self, border: int, mbit: float) -> float:
        """Return the time to send the values that cross a cut, counted from 1, to the next
        host."""
        live_bytes = self.profile.segments[border - 1].live_bytes
        return self.network.hop_latency_s + transfer_s(live_bytes, mbit)
