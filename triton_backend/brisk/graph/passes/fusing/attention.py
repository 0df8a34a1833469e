"""Recognises scaled dot-product attention: softmax(scale · q kᵀ + mask) v."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brisk.graph.attributes import integers
from brisk.graph.draft import Draft, layer_of
from brisk.graph.files.element_types import dtype_of_element, element_of_dtype
from brisk.graph.fusions import ATTENTION, fused
from brisk.graph.passes.folding.products import product_of
from brisk.graph.program import Layer, Node, ValueType
from brisk.graph.rewriting import Rewriter, plain

_FLOATS = ("float32", "float16", "bfloat16")


@dataclass(slots=True)
class _AttentionMatch:
    """``key`` is ``[batch, heads, size, length]`` unless ``key_order`` says how to read it.

    ``key_order``: the permutation that makes ``[batch, heads, length, size]`` of ``key``; None
    where it already is so.
    """

    query: str
    key: str
    value: str
    mask: str
    scale: float
    key_order: tuple[int, ...] | None
    zero_masked_rows: bool
    parts: list[Layer]


def fuse_attention(draft: Draft) -> int:
    graph = Rewriter(draft)
    for layer in list(graph):
        node = plain(layer)
        if node is None or node.operator != "MatMul":
            continue
        match = _match(graph, node)
        if match is not None and _fits(draft, match, node.outputs[0]):
            _fuse(graph, layer, match)
    return graph.commit()


def _match(graph: Rewriter, node: Node) -> _AttentionMatch | None:
    parts: list[Layer] = []
    weights, zeroed = _without_nan_guard(graph, node.inputs[0], parts)
    softmax, layer = graph.made_by(weights, "Softmax"), graph.maker(weights)
    if softmax is None or layer is None or softmax.attributes.get("axis", -1) not in (-1, 3):
        return None
    parts.append(layer)
    scores, mask = softmax.inputs[0], ""
    add, add_layer = graph.made_by(scores, "Add"), graph.maker(scores)
    if add is not None and add_layer is not None:
        parts.append(add_layer)
        candidates = [(add.inputs[0], add.inputs[1]), (add.inputs[1], add.inputs[0])]
    else:
        candidates = [(scores, "")]
    for scores, mask in candidates:
        product = product_of(graph, scores)
        if len(product.leaves) != 1:
            continue
        matmul, matmul_layer = (
            graph.made_by(product.leaves[0], "MatMul"),
            graph.maker(product.leaves[0]),
        )
        if matmul is None or matmul_layer is None:
            continue
        parts += [*product.parts, matmul_layer]
        query, query_scale = _unscaled(graph, matmul.inputs[0], parts)
        key, key_scale = _unscaled(graph, matmul.inputs[1], parts)
        key, order = _untransposed(graph, key, parts)
        scale = product.factor * query_scale * key_scale
        return _AttentionMatch(query, key, node.inputs[1], mask, scale, order, zeroed, parts)
    return None


def _without_nan_guard(graph: Rewriter, name: str, parts: list[Layer]) -> tuple[str, bool]:
    """Look through ``where(isnan(w), 0, w)``, which exporters put behind the softmax."""
    where, layer = graph.made_by(name, "Where"), graph.maker(name)
    if where is None or layer is None or graph.scalar(where.inputs[1]) != 0:
        return name, False
    guard, guard_layer = graph.made_by(where.inputs[0], "IsNaN"), graph.maker(where.inputs[0])
    if guard is None or guard_layer is None or guard.inputs[0] != where.inputs[2]:
        return name, False
    parts += [layer, guard_layer]
    return where.inputs[2], True


def _unscaled(graph: Rewriter, name: str, parts: list[Layer]) -> tuple[str, float]:
    """The value behind a constant factor, and the factor."""
    product = product_of(graph, name)
    if len(product.leaves) != 1:
        return name, 1.0
    parts += product.parts
    return product.leaves[0], product.factor


def _untransposed(
    graph: Rewriter, name: str, parts: list[Layer]
) -> tuple[str, tuple[int, ...] | None]:
    """The key before its transposition, with the order that is still to be applied."""
    transpose, layer = graph.made_by(name, "Transpose"), graph.maker(name)
    if transpose is None or layer is None or graph.sole_reader(name) is None:
        return name, (0, 1, 3, 2)
    order = integers(transpose, "perm")
    if order == (0, 1, 3, 2):
        parts.append(layer)
        return transpose.inputs[0], None
    if order is not None and len(order) == 4:
        parts.append(layer)
        first, second, third, fourth = order
        return transpose.inputs[0], (first, second, fourth, third)
    return name, (0, 1, 3, 2)


def _fits(draft: Draft, match: _AttentionMatch, target: str) -> bool:
    """Four dimensions each, batch and heads surely equal, one floating type, no widening."""
    query, key, value = (draft.type_of(name) for name in (match.query, match.key, match.value))
    key = _permuted(key, match.key_order)
    result = draft.type_of(target).shape
    if query.shape is None or key.shape is None or value.shape is None or result is None:
        return False
    if not len(query.shape) == len(key.shape) == len(value.shape) == 4:
        return False
    batch = query.shape[:2]
    same = batch == key.shape[:2] == value.shape[:2] and None not in batch
    same = same and result[:3] == query.shape[:3]
    mask = draft.type_of(match.mask) if match.mask else query
    rank = mask.rank
    return (
        same
        and query.dtype in _FLOATS
        and query.dtype == key.dtype == value.dtype == mask.dtype
        and rank is not None
        and rank <= 4
    )


def _permuted(kind: ValueType, order: tuple[int, ...] | None) -> ValueType:
    if order is None or kind.shape is None or len(kind.shape) != len(order):
        return kind
    return ValueType(kind.dtype, tuple(kind.shape[axis] for axis in order), kind.container)


def _fuse(graph: Rewriter, root: Layer, match: _AttentionMatch) -> None:
    draft = graph.draft
    target = root.outputs[0]
    key, turn = match.key, None
    if match.key_order is not None:
        kind = _permuted(draft.type_of(key), match.key_order)
        key = draft.add_value(f"{target}.key", kind)
        turn = draft.node("Transpose", (match.key,), (key,), perm=match.key_order)
    main = fused(
        ATTENTION,
        (match.query, key, match.value, *((match.mask,) if match.mask else ())),
        root.outputs,
        root.name,
        scale=match.scale,
        zero_masked_rows=int(match.zero_masked_rows),
    )
    made = graph.fuse(root, match.parts, main, nodes=_oracle(draft, match, key, target))
    if made is not None and turn is not None:
        graph.insert_before(made, layer_of(turn))


def _oracle(draft: Draft, match: _AttentionMatch, key: str, target: str) -> list[Node]:
    """Attention by its definition."""
    dtype = dtype_of_element(element_of_dtype(draft.type_of(match.query).dtype or ""))
    factor = draft.add_weight(np.array(match.scale).astype(dtype), f"{target}.scale")
    turned, raw, scores, weights = (
        draft.add_value(f"{target}.{part}") for part in ("turned", "raw", "scores", "weights")
    )
    nodes = [
        draft.node("Transpose", (key,), (turned,), perm=(0, 1, 3, 2)),
        draft.node("MatMul", (match.query, turned), (raw,)),
        draft.node("Mul", (raw, factor), (scores,)),
    ]
    if match.mask:
        masked = draft.add_value(f"{target}.masked")
        nodes.append(draft.node("Add", (scores, match.mask), (masked,)))
        scores = masked
    nodes.append(draft.node("Softmax", (scores,), (weights,), axis=-1))
    if match.zero_masked_rows:
        zero = draft.add_weight(np.array(0).astype(dtype), f"{target}.zero")
        undefined, guarded = (draft.add_value(f"{target}.{part}") for part in ("nan", "guarded"))
        nodes.append(draft.node("IsNaN", (weights,), (undefined,)))
        nodes.append(draft.node("Where", (undefined, zero, weights), (guarded,)))
        weights = guarded
    nodes.append(draft.node("MatMul", (weights, match.value), (target,)))
    return nodes
