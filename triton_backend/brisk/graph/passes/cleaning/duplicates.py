"""Merges layers that compute the same from the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

import numpy as np

from brisk.graph.draft import Draft
from brisk.graph.files.element_types import name_of_dtype
from brisk.graph.program import Node
from brisk.graph.rewriting import Rewriter, plain

RANDOM = frozenset(
    {
        *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike"),
        *("RandomUniform", "RandomUniformLike", "Dropout"),
    }
)
"""Operators that may answer differently each time."""

_COMPARED_BYTES = 256


def merge_duplicates(draft: Draft) -> int:
    graph = Rewriter(draft)
    seen: dict[Hashable, tuple[str, ...]] = {}
    nodes = [(layer, plain(layer)) for layer in graph]
    families = [None if node is None else _family(graph, node) for _, node in nodes]
    sizes = Counter(families)
    for (layer, _), family in zip(nodes, families, strict=True):
        if family is None or sizes[family] < 2:
            continue
        current = graph.maker(next(name for name in layer.outputs if name))
        node = None if current is None else plain(current)
        key = None if node is None or node.operator in RANDOM else _key(graph, node)
        if key is None:
            continue
        first = seen.setdefault(key, layer.outputs)
        if first is layer.outputs or not all(
            not name or (graph.is_renamable(name) and kept)
            for name, kept in zip(layer.outputs, first, strict=True)
        ):
            continue
        for name, kept in zip(layer.outputs, first, strict=True):
            if name:
                graph.redirect(name, kept)
        graph.remove(layer)
    return graph.commit()


def _family(graph: Rewriter, node: Node) -> Hashable:
    """Equal for nodes that may turn out to be duplicates: most have weights of their own.

    What other layers compute is no part of it, since merging those may make it equal.
    """
    weights = graph.draft.weights
    own = [
        name for name in node.inputs if name in weights and weights[name].nbytes > _COMPARED_BYTES
    ]
    return node.operator, *own


def _key(graph: Rewriter, node: Node) -> Hashable | None:
    """Equal for nodes that mean the same; None for nodes with tensors as attributes."""
    if any(isinstance(value, np.ndarray) for value in node.attributes.values()):
        return None
    attributes = tuple(sorted((name, repr(value)) for name, value in node.attributes.items()))
    inputs = tuple(_identity(graph, name) for name in node.inputs)
    return node.operator, node.version, inputs, attributes, len(node.outputs)


def _identity(graph: Rewriter, name: str) -> Hashable:
    """Small constants by content, everything else by name."""
    array = graph.constant(name)
    if array is None or array.nbytes > _COMPARED_BYTES or array.dtype.kind == "O":
        return name
    return array.dtype.str, name_of_dtype(array.dtype), array.shape, array.tobytes()
