"""Attention of a sequence to itself, with the products that make its heads, as one SelfAttention.

Exporters write the heads as three linear layers of one input, each followed by a Reshape and a
Transpose, and put them together by a Transpose and a Reshape behind. What moves data is gone
then, and the three products are one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from brisk.graph.attributes import integers
from brisk.graph.draft import Draft
from brisk.graph.fusions import ATTENTION, DOMAIN, LINEAR, SELF_ATTENTION, fused
from brisk.graph.program import Dimension, Layer, Node
from brisk.graph.rewriting import Rewriter, optional_input, plain

_SWAP = (0, 2, 1, 3)


@dataclass(slots=True)
class _Heads:
    """``source``: [batch, length, inputs]; ``weights``: names of matrix and bias ("" for none)."""

    source: str
    weights: tuple[str, str]
    parts: list[Layer] = field(default_factory=list)


def fuse_self_attention(draft: Draft) -> int:
    graph = Rewriter(draft)
    for layer in graph:
        if layer.main.domain != DOMAIN or layer.main.operator != ATTENTION or layer.epilogue:
            continue
        heads = [_heads(graph, name) for name in layer.main.inputs[:3]]
        root = _joined(graph, layer)
        if root is not None:
            _fuse(graph, layer, [found for found in heads if found is not None], *root)
    return graph.commit()


def _heads(graph: Rewriter, name: str) -> _Heads | None:
    """The linear layer behind ``name`` [batch, heads, length, size]."""
    transpose, layer = graph.made_by(name, "Transpose"), graph.maker(name)
    if transpose is None or layer is None or integers(transpose, "perm") != _SWAP:
        return None
    split = transpose.inputs[0]
    reshape, reshaping = graph.made_by(split, "Reshape"), graph.maker(split)
    if reshape is None or reshaping is None:
        return None
    flat = reshape.inputs[0]
    linear = graph.maker(flat)
    if linear is None or (linear.main.domain, linear.main.operator) != (DOMAIN, LINEAR):
        return None
    if linear.epilogue or not _divides(graph.draft, flat, split):
        return None
    source, matrix = linear.main.inputs[:2]
    bias = optional_input(linear.main, 2)
    return _Heads(source, (matrix, bias), [linear, reshaping, layer])


def _joined(graph: Rewriter, layer: Layer) -> tuple[Layer, list[Layer]] | None:
    """The Reshape that puts the heads side by side, and what lies between."""
    turning = graph.sole_reader(layer.outputs[0])
    transpose = None if turning is None else plain(turning)
    if turning is None or transpose is None or transpose.operator != "Transpose":
        return None
    if integers(transpose, "perm") != _SWAP:
        return None
    reshaping = graph.sole_reader(turning.outputs[0])
    reshape = None if reshaping is None else plain(reshaping)
    if reshaping is None or reshape is None or reshape.operator != "Reshape":
        return None
    if not _divides(graph.draft, reshaping.outputs[0], turning.outputs[0]):
        return None
    return reshaping, [turning]


def _divides(draft: Draft, flat: str, split: str) -> bool:
    """Whether ``split`` [batch, length, heads, size] is surely ``flat`` with its rows divided."""
    whole, parts = draft.type_of(flat).shape, draft.type_of(split).shape
    if whole is None or parts is None or len(whole) != 3 or len(parts) != 4:
        return False
    heads, size = parts[2:]
    if not isinstance(heads, int) or not isinstance(size, int) or None in whole:
        return False
    return whole[:2] == parts[:2] and whole[2] == heads * size


def _fuse(
    graph: Rewriter, layer: Layer, heads: list[_Heads], root: Layer, behind: list[Layer]
) -> None:
    if len(heads) != 3 or len({found.source for found in heads}) != 1:
        return
    draft, node = graph.draft, layer.main
    if draft.type_of(heads[0].source).rank != 3 or not _are_alike(draft, node):
        return
    weights = [name for found in heads for name in found.weights]
    mask = optional_input(node, 3)
    main = fused(
        SELF_ATTENTION,
        (heads[0].source, *weights, *((mask,) if mask else ())),
        root.outputs,
        layer.name,
        heads=_sizes(draft, node.inputs[0])[1],  # type: ignore[arg-type]  # _divides has seen it
        **node.attributes,
    )
    parts = [part for found in heads for part in found.parts]
    graph.fuse(root, [*parts, layer, *behind, root], main)


def _are_alike(draft: Draft, node: Node) -> bool:
    """Whether query, key and value have one shape."""
    query, key, value = (_sizes(draft, name) for name in node.inputs[:3])
    return query == key == value


def _sizes(draft: Draft, name: str) -> tuple[Dimension, ...]:
    return draft.type_of(name).shape or ()
