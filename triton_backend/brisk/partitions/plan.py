"""The best plan of each number of parts: an exact dynamic program over Pareto fronts.

The cost mixes maxima and a sum, C + IN + turns * max(E, N). So the best plan of a model need not
begin with the best plan of its beginning: the longer cold start of a beginning costs nothing if a
later part starts later still. Therefore each beginning (the segments before a cut, in so many
parts) keeps every state (C, max(E, N), IN) that no other of its states matches or beats in all
three. The rest of a plan adds the same to the IN of every state, and takes maxima with its C and
max(E, N), so in any plan a dropped state can be replaced by a kept one.

Two things keep the fronts small without changing the answer. First, a state is dropped if its
lower bound is no less than the cost of a known plan. The bound adds the rest of the model by
itself at its cheapest: the longest start and run of the rest as short as parts can make them, with
its cheapest hops. Second, C and max(E, N) are raised to at least what that rest makes of them, so
that many states become equal.

For n segments and p parts the tables take O(n^2) for each rate of bytes, the bounds O(n p log n),
and the program O(n^2 p F) for fronts of up to F states. At worst F is the number of pairs of a
start and a step, O(n^4); in practice it is some dozens, since most states are dropped. All numbers
of parts and groups of P hosts take the sum of that over p <= P, groups <= P / p.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from operator import itemgetter
from typing import NamedTuple

from brisk.partitions.cost import GroupPrices, PartitionPlan, Pricing, StartTable, Turns

_BEAM = 2
"""The states that each cut keeps in the quick search for a plan to compare others with."""


def best_plans(pricing: Pricing, turns: Turns) -> tuple[PartitionPlan, ...]:
    """Return the best plan for each number of parts, from 1 to the number of hosts or segments,
    whichever is less."""
    return tuple(_best_of(pricing, parts, turns) for parts in range(1, pricing.most_parts + 1))


def best_plan(pricing: Pricing, turns: Turns) -> PartitionPlan:
    """Return the best plan of any number of parts; of equal plans that of the fewest, so one host
    if parts do not pay."""
    return min(best_plans(pricing, turns), key=lambda plan: (plan.latency_s(turns), plan.parts))


def useful_groups(pricing: Pricing, parts: int, turns: Turns) -> list[int]:
    """Return the numbers of groups worth trying: those with fewer turns than any smaller number,
    except those for which the next larger one has the same rates and so costs no more."""
    useful: list[int] = []
    for groups in range(1, pricing.most_groups(parts) + 1):
        if not useful or turns(groups) < turns(useful[-1]):
            if useful and pricing.rates(parts, groups) == pricing.rates(parts, useful[-1]):
                useful.pop()
            useful.append(groups)
    return useful


def _best_of(pricing: Pricing, parts: int, turns: Turns) -> PartitionPlan:
    best: PartitionPlan | None = None
    for groups in useful_groups(pricing, parts, turns):
        search = _Search(pricing, parts, groups, turns(groups))
        plan = pricing.plan(search.shortest_start(), groups)
        known_s = math.inf if best is None else best.latency_s(turns)
        for width in (_BEAM, None):
            known_s = min(known_s, plan.latency_s(turns))
            cuts = search.cheaper_than(known_s, width)
            if cuts is not None:
                plan = pricing.plan(cuts, groups)
        if best is None or plan.latency_s(turns) < best.latency_s(turns):
            best = plan
    assert best is not None  # one group is always looked at
    return best


class _State(NamedTuple):
    """A plan of a beginning of the model, linked to the plan without its last part."""

    start_s: float
    """The longest cold start, C, at least what the rest of the model makes of it."""
    step_s: float
    """The slowest step, max(E, N), at least what the rest of the model makes of it; 0 without
    turns."""
    hops_s: float
    """The sum of the hops: IN."""
    least_s: float
    """A lower bound of the cost of any plan with this beginning."""
    first: int
    """The first segment of the last part."""
    before: _State | None
    """The state without the last part; None at the model's beginning."""


_STATE = itemgetter(0, 1, 2)


class _Search:
    """The search of the best plan of ``parts`` parts in ``groups`` groups, for requests that wait
    ``turns`` times for the slowest step."""

    def __init__(self, pricing: Pricing, parts: int, groups: int, turns: float) -> None:
        self._parts = parts
        self._turns = turns
        self._count = len(pricing.profile)
        self._run_before_s = pricing.run_before_s
        self._prices = pricing.prices(parts, groups)
        self._starts_s = _least_longest(self._prices.fastest, parts, self._count)
        self._steps_s = _least_longest(pricing.run_table, parts, self._count)
        self._hops_s = _least_hops(self._prices, parts, self._count)

    def shortest_start(self) -> tuple[int, ...]:
        """Return the cuts with the shortest longest start of a part, if every host had the fastest
        host's rate."""
        cuts, first = [], 0
        for rest in range(self._parts - 1, 0, -1):
            row, behind = self._prices.fastest[first], self._starts_s[rest]
            ends = range(first + 1, self._count - rest + 1)
            first = min(ends, key=lambda end: max(row[end], behind[end]))
            cuts.append(first)
        return tuple(cuts)

    def cheaper_than(self, known_s: float, width: int | None) -> tuple[int, ...] | None:
        """Return the cuts of the cheapest plan that costs less than ``known_s``; None if there is
        none.

        ``width``: how many states each cut keeps, those of the least lower bounds; None for all.
        """
        layer: dict[int, list[_State]] = {0: [_State(0.0, 0.0, 0.0, 0.0, 0, None)]}
        for part in range(self._parts):
            reached: dict[int, list[_State]] = {}
            for first in sorted(layer):
                self._extend(part, first, layer[first], known_s, reached)
            layer = {end: _front(states, width) for end, states in reached.items()}
        complete = layer.get(self._count)
        if not complete:
            return None
        state: _State | None = min(complete, key=lambda each: each.least_s)
        cuts: list[int] = []
        while state is not None and state.first > 0:
            cuts.append(state.first)
            state = state.before
        return tuple(reversed(cuts))

    def _extend(
        self,
        part: int,
        first: int,
        states: list[_State],
        known_s: float,
        reached: dict[int, list[_State]],
    ) -> None:
        """Extend ``states`` by part number ``part`` from segment ``first`` on; add the new states
        to ``reached``."""
        rest = self._parts - part - 1
        starts, hops = self._prices.starts[part][first], self._prices.hops_s[part]
        rest_starts, rest_steps = self._starts_s[rest], self._steps_s[rest]
        rest_hops, turns = self._hops_s[rest], self._turns
        runs, run_s = self._run_before_s, self._run_before_s[-1]
        longest = self._count - rest
        for state in states:
            spare_s = known_s - run_s - state.hops_s - self._hops_s[rest + 1][first]
            most_start_s = spare_s - turns * state.step_s
            # the cost of the part grows with its end, that of the rest shrinks: other ends cost
            # too much, by their starts or by their steps
            last = min(bisect_right(starts, most_start_s, first + 1) - 1, longest)
            ends = range(first + 1 if rest else longest, last + 1)
            ends = ends[_place_of_most(rest_starts, ends, most_start_s) :]
            if turns:
                most_step_s = (spare_s - state.start_s) / turns
                last = min(bisect_right(runs, runs[first] + most_step_s) - 1, last)
                ends = range(ends.start, last + 1)
                ends = ends[_place_of_most(rest_steps, ends, most_step_s) :]
            for end in ends:
                start_s, hop_s = state.start_s, hops[end]
                if starts[end] > start_s:
                    start_s = starts[end]
                if rest_starts[end] > start_s:
                    start_s = rest_starts[end]
                hops_s = state.hops_s + hop_s
                least_s = run_s + start_s + hops_s + rest_hops[end]
                step_s = 0.0
                if turns:
                    step_s = max(state.step_s, runs[end] - runs[first], hop_s, rest_steps[end])
                    least_s += turns * step_s
                if least_s < known_s:
                    extended = _State(start_s, step_s, hops_s, least_s, first, state)
                    reached.setdefault(end, []).append(extended)


def _place_of_most(costs: list[float], ends: range, most: float) -> int:
    """Return the index of the first of ``ends`` whose cost is at most ``most``. Precondition:
    ``costs`` do not increase."""
    return bisect_left(ends, True, key=lambda end: costs[end] <= most)


def _front(states: list[_State], width: int | None) -> list[_State]:
    """Return the Pareto front: the states that no other one matches or beats in start, step and
    hops, and of equal ones the first.

    ``width``: the most states to return, those of the least lower bounds; None for all.
    """
    front: list[_State] = []
    steps: list[float] = []
    hops: list[float] = []
    for state in sorted(states, key=_STATE):
        # of the kept states, which start no later: ``steps`` ascends, ``hops`` descends
        place = bisect_right(steps, state.step_s)
        if place and hops[place - 1] <= state.hops_s:
            continue
        front.append(state)
        place = bisect_left(steps, state.step_s)
        until = place
        while until < len(steps) and hops[until] >= state.hops_s:
            until += 1
        steps[place:until] = [state.step_s]
        hops[place:until] = [state.hops_s]
    if width is not None and len(front) > width:
        front = sorted(front, key=lambda each: each.least_s)[:width]
    return front


def _least_longest(table: StartTable, parts: int, count: int) -> list[list[float]]:
    """Return the least cost of the longest part of the model's rest, by its number of parts and
    first segment.

    ``table``: the cost by first segment and the cut behind the last; it grows with the part.
    Infinite if there are fewer segments than parts; 0 for no part of no segment.
    """
    rows = [[math.inf] * count + [0.0]]
    rows.append([table[first][count] for first in range(count)] + [math.inf])
    for number in range(2, parts + 1):
        before, row = rows[-1], [math.inf] * (count + 1)
        for first in range(count - number + 1):
            lowest, highest = first + 1, count - number + 1
            while lowest < highest:  # the first border from which this part is the longest one
                middle = (lowest + highest) // 2
                if table[first][middle] >= before[middle]:
                    highest = middle
                else:
                    lowest = middle + 1
            row[first] = max(table[first][lowest], before[lowest])
            if lowest > first + 1:
                row[first] = min(row[first], max(table[first][lowest - 1], before[lowest - 1]))
        rows.append(row)
    return rows


def _least_hops(prices: GroupPrices, parts: int, count: int) -> list[list[float]]:
    """Return the least sum of hops of the model's rest, by its number of parts and first
    segment."""
    cheapest = [min(each) for each in zip(*prices.hops_s[:-1], strict=True)] or [0.0] * (count + 1)
    back_s = prices.hops_s[-1][count]
    rows = [[math.inf] * count + [0.0], [back_s] * count + [math.inf]]
    for number in range(2, parts + 1):
        row, least = [math.inf] * (count + 1), math.inf
        for first in range(count - number, -1, -1):
            least = min(least, cheapest[first + 1] + rows[-1][first + 1])
            row[first] = least
        rows.append(row)
    return rows
