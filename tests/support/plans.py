"""Random queries, and simple, slow references of their planner."""

from __future__ import annotations

import itertools
import math

from hypothesis import strategies

from brisk.pipelines.query import NetworkVariant, QueryNode

MS = 1_000_000

Nodes = tuple[QueryNode, ...]


def node(name: str, *variants: tuple[float, int]) -> QueryNode:
    """Return a node whose variants are given as accuracy and latency in ms, named by their
    latency."""
    return QueryNode(
        name,
        tuple(NetworkVariant(f"{ms} ms", accuracy, ms * MS) for accuracy, ms in variants),
    )


@strategies.composite
def queries(draw: strategies.DrawFn, most_nodes: int = 5, most_variants: int = 3) -> Nodes:
    """Draw queries of latencies of 1 to 60 ms."""
    nodes: list[QueryNode] = []
    for index in range(draw(strategies.integers(1, most_nodes))):
        variants = draw(
            strategies.lists(
                strategies.tuples(strategies.integers(50, 99), strategies.integers(1, 60)),
                min_size=1,
                max_size=most_variants,
                unique_by=lambda pair: pair[1],
            )
        )
        nodes.append(node(f"n{index}", *((percent / 100, ms) for percent, ms in variants)))
    return tuple(nodes)


def best_accuracy(nodes: Nodes, left_ns: int) -> float | None:
    """Return the greatest product of accuracies of all choices that fit one after the other."""
    best = None
    for chosen in itertools.product(*(node.variants for node in nodes)):
        if sum(variant.full_ns for variant in chosen) <= left_ns:
            accuracy = math.prod(variant.accuracy for variant in chosen)
            best = accuracy if best is None else max(best, accuracy)
    return best
