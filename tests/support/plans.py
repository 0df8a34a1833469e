"""Random queries, and the simple, slow twins of what plans them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping

from hypothesis import strategies

from brisk.planning import Dag, Execution, NetworkVariant, QueryNode

MS = 1_000_000


def node(name: str, *variants: tuple[float, int], after: tuple[str, ...] = ()) -> QueryNode:
    """Variants as accuracy and latency in ms, named by their latency."""
    return QueryNode(
        name,
        tuple(NetworkVariant(f"{ms} ms", accuracy, ms * MS) for accuracy, ms in variants),
        after,
    )


@strategies.composite
def dags(draw: strategies.DrawFn, most_nodes: int = 5, most_variants: int = 3) -> Dag:
    """Any graph, forks and joins among them, latencies of 1 to 60 ms."""
    nodes: list[QueryNode] = []
    for index in range(draw(strategies.integers(1, most_nodes))):
        names = [node.name for node in nodes]
        after = draw(strategies.sets(strategies.sampled_from(names))) if names else set()
        variants = draw(
            strategies.lists(
                strategies.tuples(strategies.integers(50, 99), strategies.integers(1, 60)),
                min_size=1,
                max_size=most_variants,
                unique_by=lambda pair: pair[1],
            )
        )
        shares = tuple((percent / 100, ms) for percent, ms in variants)
        nodes.append(node(f"n{index}", *shares, after=tuple(sorted(after))))
    return Dag(tuple(nodes))


@strategies.composite
def chains(draw: strategies.DrawFn) -> Dag:
    """One node behind the other."""
    nodes = draw(dags(most_nodes=5)).nodes
    return Dag(
        tuple(
            QueryNode(each.name, each.variants, (nodes[place - 1].name,) if place else ())
            for place, each in enumerate(nodes)
        )
    )


def paths(dag: Dag, execution: Execution) -> Iterator[tuple[QueryNode, ...]]:
    """Every path from a node without predecessors to one without successors, one by one."""
    if execution is Execution.SERIAL:
        yield dag.nodes
        return
    followers = {node.name: [n for n in dag.nodes if node.name in n.after] for node in dag.nodes}

    def walk(path: tuple[QueryNode, ...]) -> Iterator[tuple[QueryNode, ...]]:
        behind = followers[path[-1].name]
        if not behind:
            yield path
        for following in behind:
            yield from walk((*path, following))

    for node in dag.nodes:
        if not node.after:
            yield from walk((node,))


def budgets_by_paths(
    dag: Dag, left_ns: int, execution: Execution, weights: Mapping[str, int]
) -> dict[str, int]:
    """GATI 5.2.1 word by word: one path at a time, then the minimum for each node."""
    budgets = {node.name: left_ns for node in dag.nodes}
    for path in paths(dag, execution):
        total = sum(weights[node.name] for node in path)
        for node in path:
            share = left_ns * weights[node.name] // total
            budgets[node.name] = min(budgets[node.name], share)
    return budgets


def best_accuracy(dag: Dag, left_ns: int) -> float | None:
    """The greatest product of accuracies of all choices that fit one after the other."""
    best = None
    for chosen in itertools.product(*(node.variants for node in dag.nodes)):
        if sum(variant.full_ns for variant in chosen) <= left_ns:
            accuracy = math.prod(variant.accuracy for variant in chosen)
            best = accuracy if best is None else max(best, accuracy)
    return best
