"""Which variant of each network a query runs: policies, and a plan made anew on its way.

A policy is a pure function of the nodes that are left, which run one after the other, and of the
time that is left for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class NetworkVariant:
    """One network for a node's task. ``accuracy``: share of right answers, 0 to 1.

    ``full_ns``: what it takes without an early answer. ``usual_ns``: within which most of its
    runs answer, early ones included; None where that is the same.
    """

    name: str
    accuracy: float
    full_ns: int
    usual_ns: int | None = None

    @property
    def may_be_early(self) -> bool:
        """Whether most of its runs take less than a whole one."""
        return self.usual_ns is not None and self.usual_ns < self.full_ns

    def as_usual(self) -> NetworkVariant:
        """The same, taking what it usually does."""
        if self.usual_ns is None or not self.may_be_early:
            return self
        return replace(self, full_ns=self.usual_ns, usual_ns=None)


@dataclass(frozen=True, slots=True)
class QueryNode:
    """``variants``: at least one."""

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
    """``budget_ns``: what the node may take by the plan; less than its variant takes where no
    variant is fast enough. It is negative where the time is over already."""

    variant: NetworkVariant
    budget_ns: int


Policy: TypeAlias = Callable[[Sequence[QueryNode], int], Mapping[str, Choice]]
"""A choice for every node by name, within the time in ns that is left for all of them."""


def split_equally(nodes: Sequence[QueryNode], left_ns: int) -> dict[str, Choice]:
    """GATI 5.2.1, equal split: each of N nodes gets L / N."""
    return _split(nodes, left_ns, [1] * len(nodes))


def split_in_proportion(nodes: Sequence[QueryNode], left_ns: int) -> dict[str, Choice]:
    """GATI's equation 4: a node's share of L is its slowest variant's share of all slowest."""
    return _split(nodes, left_ns, [max(1, node.slowest_ns) for node in nodes])


def _split(nodes: Sequence[QueryNode], left_ns: int, weights: Sequence[int]) -> dict[str, Choice]:
    budgets_ns = [left_ns * weight // sum(weights) for weight in weights]
    return {
        node.name: Choice(most_accurate_within(node, budget_ns), budget_ns)
        for node, budget_ns in zip(nodes, budgets_ns, strict=True)
    }


def most_accurate_within(node: QueryNode, budget_ns: int) -> NetworkVariant:
    """GATI's PickBestModel: the most accurate variant whose full run fits, else the fastest.

    Of equally accurate ones the faster.
    """
    fitting = [v for v in node.variants if v.full_ns <= budget_ns]
    if not fitting:
        return node.fastest
    return max(fitting, key=lambda variant: (variant.accuracy, -variant.full_ns))


@dataclass(frozen=True, slots=True)
class _Part:
    """Variants for some nodes: what they take in all, and the product of their accuracies."""

    latency_ns: int
    accuracy: float
    variants: tuple[NetworkVariant, ...]


def exact(nodes: Sequence[QueryNode], left_ns: int) -> dict[str, Choice]:
    """The variants with the greatest product of accuracies whose full runs fit together.

    Beyond GATI: a split leaves every node's remainder unused, this does not. Where nothing fits:
    every node's fastest. What is left over is added to the last node's budget.
    """
    parts = [_Part(0, 1.0, ())]
    for node in nodes:
        grown = (
            _Part(
                part.latency_ns + variant.full_ns,
                part.accuracy * variant.accuracy,
                (*part.variants, variant),
            )
            for part in parts
            for variant in node.variants
        )
        parts = _undominated(list(grown))
    fitting = [part for part in parts if part.latency_ns <= left_ns]
    best = max(fitting, key=lambda part: part.accuracy) if fitting else parts[0]
    choices = {
        node.name: Choice(variant, variant.full_ns)
        for node, variant in zip(nodes, best.variants, strict=True)
    }
    if nodes:
        last = choices[nodes[-1].name]
        over_ns = left_ns - best.latency_ns
        choices[nodes[-1].name] = Choice(last.variant, last.budget_ns + over_ns)
    return choices


def _undominated(parts: list[_Part]) -> list[_Part]:
    """Without those that another one beats in both respects; fastest first."""
    parts.sort(key=lambda part: (part.latency_ns, -part.accuracy))
    kept: list[_Part] = []
    for part in parts:
        if not kept or part.accuracy > kept[-1].accuracy:
            kept.append(part)
    return kept


POLICIES: Mapping[str, Policy] = {
    "equal": split_equally,
    "proportional": split_in_proportion,
    "exact": exact,
}


class Replanning(Enum):
    """STATIC: the plan made at the start is kept. INCREMENTAL: it is made anew for what is left
    whenever a node begins, with the time that earlier nodes left over or took too much."""

    STATIC = "static"
    INCREMENTAL = "incremental"


class Query:
    """One query on its way through its nodes, after GATI's Pseudocode 1. Not thread-safe.

    Times are of one clock, in ns; ``due_ns`` is the end of the objective.

    Pseudocode 1 adds what a finished node saved to the budgets of the nodes behind it, by the
    policy's own shares. For both splits that equals splitting the time that is left over the
    nodes that are left, which is what is done here; it holds for other policies too, and where
    time was lost instead of saved.

    Beyond GATI, an incremental plan reckons with what variants usually take, early answers
    included, as long as a whole run of the one that begins leaves the others time enough for
    their fastest: what an early answer spares is then known before, not only behind it. A static
    plan, which cannot be mended, reckons with whole runs.
    """

    def __init__(
        self,
        nodes: Sequence[QueryNode],
        objective_ns: int,
        started_ns: int,
        policy: Policy,
        replanning: Replanning = Replanning.INCREMENTAL,
    ) -> None:
        """``nodes``: in the order in which they run, on one processor."""
        self._left = tuple(nodes)
        self.due_ns = started_ns + objective_ns
        self._policy = policy
        self._replanning = replanning
        self._plan = policy(nodes, objective_ns)

    @property
    def plan(self) -> Mapping[str, Choice]:
        """The latest choice for every node; final for those that have begun."""
        return self._plan

    def begin(self, name: str, now_ns: int) -> Choice:
        """The choice for a node that runs now. Precondition: the nodes before it have run."""
        if self._replanning is Replanning.INCREMENTAL:
            self._plan = {**self._plan, **self._plan_anew(name, self.due_ns - now_ns)}
        self._left = tuple(node for node in self._left if node.name != name)
        return self._plan[name]

    def _plan_anew(self, name: str, left_ns: int) -> Mapping[str, Choice]:
        """For all that is left, with node ``name`` about to begin."""
        if any(variant.may_be_early for node in self._left for variant in node.variants):
            usual = [
                replace(node, variants=tuple(each.as_usual() for each in node.variants))
                for node in self._left
            ]
            plan = self._policy(usual, left_ns)
            chosen = next(
                variant
                for node in self._left
                for variant in node.variants
                if node.name == name and variant.name == plan[name].variant.name
            )
            others = [node.fastest.full_ns for node in self._left if node.name != name]
            if not chosen.may_be_early or chosen.full_ns + sum(others) <= left_ns:
                return {**plan, name: Choice(chosen, plan[name].budget_ns)}
        return self._policy(self._left, left_ns)
