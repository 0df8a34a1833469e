"""Chooses the variant of each network that a query runs (GATI, 5.1 and 5.2): policies, and a plan
that is renewed while the query runs. Nothing here reads a clock.

A policy is a pure function of the nodes that are left, which run one after the other, and of the
time that is left for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple, TypeAlias


@dataclass(frozen=True, slots=True)
class NetworkVariant:
    """One network for a node's task."""

    name: str
    accuracy: float
    """The share of right answers, 0 to 1."""
    full_ns: int
    """The time without an early answer."""
    usual_ns: int | None = None
    """The time in which most of its runs answer, early ones included; None: the same."""

    @property
    def may_be_early(self) -> bool:
        return self.usual_ns is not None and self.usual_ns < self.full_ns

    def as_usual(self) -> NetworkVariant:
        """Return the same variant, taking the time that it usually takes."""
        if self.usual_ns is None or not self.may_be_early:
            return self
        return replace(self, full_ns=self.usual_ns, usual_ns=None)


@dataclass(frozen=True, slots=True)
class QueryNode:
    """A node, with at least one variant."""

    name: str
    variants: tuple[NetworkVariant, ...]

    @property
    def slowest_ns(self) -> int:
        """The maximum execution time among its variants: C_i of GATI's equation 4."""
        return max(variant.full_ns for variant in self.variants)

    @property
    def fastest(self) -> NetworkVariant:
        return min(self.variants, key=lambda variant: variant.full_ns)


@dataclass(frozen=True, slots=True)
class Choice:
    """The variant of a node that was chosen."""

    variant: NetworkVariant
    budget_ns: int
    """The node's time by the plan; less than its variant takes if no variant is fast enough, and
    negative if the time is over already."""


Policy: TypeAlias = Callable[[Sequence[QueryNode], int], Mapping[str, Choice]]
"""A function that chooses for every node, by name, within the time in ns left for all of them."""


def split_equally(nodes: Sequence[QueryNode], left_ns: int) -> dict[str, Choice]:
    """Split the time as GATI 5.2.1, equal split: each of N nodes gets L / N."""
    return _split(nodes, left_ns, [1] * len(nodes))


def split_in_proportion(nodes: Sequence[QueryNode], left_ns: int) -> dict[str, Choice]:
    """Split the time by GATI's equation 4: a node's share of L is its slowest variant's share of
    all slowest."""
    return _split(nodes, left_ns, [max(1, node.slowest_ns) for node in nodes])


def _split(nodes: Sequence[QueryNode], left_ns: int, weights: Sequence[int]) -> dict[str, Choice]:
    budgets_ns = [left_ns * weight // sum(weights) for weight in weights]
    return {
        node.name: Choice(most_accurate_within(node, budget_ns), budget_ns)
        for node, budget_ns in zip(nodes, budgets_ns, strict=True)
    }


def most_accurate_within(node: QueryNode, budget_ns: int) -> NetworkVariant:
    """Return the most accurate variant whose full run fits, else the fastest (GATI's
    PickBestModel).

    Of equally accurate variants the faster one is chosen.
    """
    fitting = [v for v in node.variants if v.full_ns <= budget_ns]
    return max(fitting, key=lambda v: (v.accuracy, -v.full_ns), default=node.fastest)


def exact(nodes: Sequence[QueryNode], left_ns: int) -> dict[str, Choice]:
    """Choose the variants with the greatest product of accuracies whose full runs fit together.

    This goes beyond GATI, where a split leaves every node's remainder unused. If nothing fits,
    every node gets its fastest variant. Time left over is added to the last node's budget.
    """
    if not nodes:
        return {}
    front = [_Combination(0, 1.0, ())]
    for node in nodes:
        extended = [
            _Combination(
                one.run_ns + each.full_ns, one.accuracy * each.accuracy, (*one.variants, each)
            )
            for one in front
            for each in node.variants
        ]
        extended.sort(key=lambda one: (one.run_ns, -one.accuracy))
        front = []
        for one in extended:  # without those that another one beats in time and accuracy
            if not front or one.accuracy > front[-1].accuracy:
                front.append(one)
    fitting = [one for one in front if one.run_ns <= left_ns]
    best = fitting[-1] if fitting else front[0]
    over_ns = [0] * (len(nodes) - 1) + [left_ns - best.run_ns]
    return {
        node.name: Choice(variant, variant.full_ns + more_ns)
        for node, variant, more_ns in zip(nodes, best.variants, over_ns, strict=True)
    }


class _Combination(NamedTuple):
    """Variants of the first nodes, the time of their full runs, and their accuracies' product."""

    run_ns: int
    accuracy: float
    variants: tuple[NetworkVariant, ...]


POLICIES: Mapping[str, Policy] = {
    "equal": split_equally,
    "proportional": split_in_proportion,
    "exact": exact,
}


class Replanning(Enum):
    """The time at which a plan is made.

    STATIC: the plan of the start is kept.
    INCREMENTAL: a new plan for the nodes that are left is made whenever a node begins, with the
    time that earlier nodes left over or exceeded. It has not yet paid in any setting of
    `brisk bench pipeline`.
    """

    STATIC = "static"
    INCREMENTAL = "incremental"


class Query:
    """One query on its way through its nodes, after GATI's Pseudocode 1. Not thread-safe.

    Times are of one clock, in ns; ``due_ns`` is the end of the objective.

    Pseudocode 1 adds what a finished node saved to the budgets of the nodes behind it, by the
    policy's own shares. For both splits that equals splitting the time that is left over the nodes
    that are left, which is what is done here; it holds for other policies too, and if time was
    lost instead of saved.

    Beyond GATI, an incremental plan uses the times that variants usually take, early answers
    included, as long as a whole run of the one that begins leaves the others time enough for their
    fastest. The saving of an early answer is then counted beforehand, not only afterwards. A
    static plan, which cannot be corrected, uses the times of whole runs.
    """

    def __init__(
        self,
        nodes: Sequence[QueryNode],
        objective_ns: int,
        started_ns: int,
        policy: Policy,
        replanning: Replanning = Replanning.STATIC,
    ) -> None:
        """``nodes``: in the order in which they run, on one processor."""
        self.left = tuple(nodes)
        self.due_ns = started_ns + objective_ns
        self._policy = policy
        self._replanning = replanning
        self.plan = policy(nodes, objective_ns)
        """The latest choice for every node that has not begun."""

    def begin(self, now_ns: int) -> Choice:
        """Return the choice for the next node, which runs now. Precondition: there is one."""
        if self._replanning is Replanning.INCREMENTAL:
            self.plan = self._plan_anew(self.due_ns - now_ns)
        node, self.left = self.left[0], self.left[1:]
        return self.plan[node.name]

    def _plan_anew(self, left_ns: int) -> Mapping[str, Choice]:
        """Return a plan for the nodes that are left, of which the first is about to begin."""
        node, *behind = self.left
        usual = [
            replace(each, variants=tuple(variant.as_usual() for variant in each.variants))
            for each in self.left
        ]
        plan = self._policy(usual, left_ns)
        choice = plan[node.name]
        whole = next(each for each in node.variants if each.name == choice.variant.name)
        least_ns = whole.full_ns + sum(each.fastest.full_ns for each in behind)
        if least_ns <= left_ns:  # a late one too: others behind it are hoped for
            return {**plan, node.name: Choice(whole, choice.budget_ns)}
        return self._policy(self.left, left_ns)
