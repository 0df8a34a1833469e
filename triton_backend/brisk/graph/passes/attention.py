"""Recognises scaled dot-product attention: softmax(scale · q kᵀ + mask) v."""

from __future__ import annotations

from brisk.graph.draft import Draft, is_standard
from brisk.graph.passes.products import Product, product_of
from brisk.graph.program import ATTENTION, Node

_FLOATS = ("float32", "float16", "bfloat16")


def fuse_attention(draft: Draft) -> None:
    for node in draft:
        if not is_standard(node, "MatMul"):
            continue
        parts: list[Node] = []
        weights, zeroed = _without_nan_guard(draft, node.inputs[0], parts)
        softmax = draft.maker(weights, "Softmax")
        if softmax is None or softmax.integer("axis", -1) not in (-1, 3):
            continue
        found = _scores(draft, softmax.inputs[0])
        if found is None:
            continue
        scores, mask, inside = found
        value = node.inputs[1]
        domain, operator = ATTENTION
        fused = Node(
            operator,
            (*scores.leaves, value, *([mask] if mask else [])),
            node.outputs,
            {"scale": scores.factor, "zero_masked_rows": int(zeroed)},
            domain,
            name=node.name,
        )
        if _fits(draft, *fused.inputs):
            draft.fuse(node, [*parts, softmax, *inside, *scores.parts], fused)


def _without_nan_guard(draft: Draft, name: str, parts: list[Node]) -> tuple[str, bool]:
    """Look through ``where(isnan(w), 0, w)``, which exporters put behind the softmax."""
    where = draft.maker(name, "Where")
    guard = None if where is None else draft.maker(where.inputs[0], "IsNaN")
    if where is None or guard is None or draft.scalar(where.inputs[1]) != 0:
        return name, False
    if guard.inputs[0] != where.inputs[2]:
        return name, False
    parts += [where, guard]
    return where.inputs[2], True


def _scores(draft: Draft, name: str) -> tuple[Product, str, list[Node]] | None:
    """``scale · query @ key`` with its leaves query and key, the mask or ``""``, other nodes."""
    add = draft.maker(name, "Add")
    candidates = [(name, "")] if add is None else [add.inputs, add.inputs[::-1]]
    for scores, mask in candidates:
        product = product_of(draft, scores)
        matmul = draft.maker(product.leaves[0], "MatMul") if len(product.leaves) == 1 else None
        if matmul is None:
            continue
        operands = [product_of(draft, operand) for operand in matmul.inputs]
        query, key = (
            found if len(found.leaves) == 1 else Product(leaves=[operand])
            for found, operand in zip(operands, matmul.inputs, strict=True)
        )
        scale = product.factor * query.factor * key.factor
        parts = [*product.parts, matmul, *query.parts, *key.parts]
        whole = Product(scale, [*query.leaves, *key.leaves], parts)
        return whole, mask, [] if add is None else [add]
    return None


def _fits(draft: Draft, query: str, key: str, value: str, mask: str = "") -> bool:
    """Four dimensions each, of the mask at most, and one floating type."""
    types = [draft.type_of(name) for name in (query, key, value)]
    masked = draft.type_of(mask) if mask else types[0]
    return (
        all(each.rank == 4 for each in types)
        and masked.rank is not None
        and masked.rank <= 4
        and types[0].dtype in _FLOATS
        and len({each.dtype for each in (*types, masked)}) == 1
    )
