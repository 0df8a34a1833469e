"""Policies: which variant each node gets, of a whole query or of what is left of one.

A policy is a pure function of the nodes and of the time that is left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from brisk.planning.dag import Dag, Execution, NetworkVariant, QueryNode


@dataclass(frozen=True, slots=True)
class Choice:
    """``budget_ns``: what the node may take by the plan; less than its variant takes where no
    variant is fast enough. It is negative where the time is over already."""

    variant: NetworkVariant
    budget_ns: int


Policy: TypeAlias = Callable[[Dag, int, Execution], Mapping[str, Choice]]
"""A choice for every node, within the time in ns that is left for all of them."""


def split_equally(dag: Dag, left_ns: int, execution: Execution) -> dict[str, Choice]:
    """GATI 5.2.1, equal split: each of a path's N nodes gets L / N."""
    return _split(dag, left_ns, execution, dict.fromkeys((n.name for n in dag.nodes), 1))


def split_in_proportion(dag: Dag, left_ns: int, execution: Execution) -> dict[str, Choice]:
    """GATI's equation 4: a node's share of L is its slowest variant's share of the path's."""
    weights = {node.name: max(1, node.slowest_ns) for node in dag.nodes}
    return _split(dag, left_ns, execution, weights)


def _split(
    dag: Dag, left_ns: int, execution: Execution, weights: Mapping[str, int]
) -> dict[str, Choice]:
    """The least of a node's budgets over all paths through it, which is that of the heaviest."""
    paths = dag.heaviest_paths(weights, execution)
    budgets = {name: left_ns * weights[name] // paths[name] for name in weights}
    return {
        node.name: Choice(most_accurate_within(node, budgets[node.name]), budgets[node.name])
        for node in dag.nodes
    }


def most_accurate_within(node: QueryNode, budget_ns: int) -> NetworkVariant:
    """GATI's PickBestModel: the most accurate variant whose full run fits, else the fastest.

    Of equally accurate ones the faster.
    """
    fitting = [v for v in node.variants if v.full_ns <= budget_ns]
    if not fitting:
        return min(node.variants, key=lambda variant: variant.full_ns)
    return max(fitting, key=lambda variant: (variant.accuracy, -variant.full_ns))


@dataclass(frozen=True, slots=True)
class _Part:
    """Variants for some nodes: what they take in all, and the product of their accuracies."""

    latency_ns: int
    accuracy: float
    variants: tuple[NetworkVariant, ...]


def exact(dag: Dag, left_ns: int, execution: Execution) -> dict[str, Choice]:
    """The variants with the greatest product of accuracies whose full runs fit together.

    Beyond GATI: a split leaves every node's remainder unused, this does not. For a parallel
    execution it is exact as long as all nodes were to run one after the other, so it never
    promises too much. Where nothing fits: every node's fastest. What is left over is added to
    the last node's budget.
    """
    parts = [_Part(0, 1.0, ())]
    for node in dag.nodes:
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
        for node, variant in zip(dag.nodes, best.variants, strict=True)
    }
    if dag.nodes:
        last = dag.nodes[-1].name
        over_ns = left_ns - best.latency_ns
        choices[last] = Choice(choices[last].variant, choices[last].budget_ns + over_ns)
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
