"""Recognises what exporters spell out: activations, attention and normalisation.

A product is opened up and its factors compared, whatever their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isclose, nan, sqrt

import numpy as np

from brisk.graph.draft import NO_NODE, Draft, is_standard
from brisk.graph.files.element_types import dtype_of_name
from brisk.graph.program import ATTENTION, Dimension, Node

NARROW = ("float32", "float16", "bfloat16")
"""What is fused computes in float32, so double precision stays spelled out."""

_TOLERANCE = 1e-3
"""Relative: exporters round constants, to half precision at worst."""


def is_close(one: float, other: float) -> bool:
    return isclose(one, other, rel_tol=_TOLERANCE)


@dataclass(slots=True)
class Product:
    """``factor`` times the values ``leaves``; ``parts`` are the nodes that multiply."""

    factor: float = 1.0
    leaves: list[str] = field(default_factory=list)
    parts: list[Node] = field(default_factory=list)


def product_of(draft: Draft, name: str, root: Node = NO_NODE) -> Product:
    """The product that makes ``name``, opened up as far as values have no other readers.

    ``root``: the node that makes ``name`` where it is to be opened whoever reads it.
    """
    result = Product()
    _open(draft, name, root, result)
    return result


def _open(draft: Draft, name: str, node: Node, result: Product) -> None:
    scalar = draft.scalar(name)
    if scalar is not None:
        result.factor *= scalar
        return
    if not node.operator and draft.is_read_once(name):
        node = draft.maker(name, "Mul", "Div")
    divisor = draft.scalar(node.inputs[1]) if is_standard(node, "Div") else None
    if not (is_standard(node, "Mul") or divisor):
        result.leaves.append(name)
        return
    result.parts.append(node)
    result.factor /= divisor or 1.0
    for operand in node.inputs[: 1 if divisor else 2]:
        _open(draft, operand, NO_NODE, result)


def sum_with_scalar(draft: Draft, name: str) -> tuple[str, float, Node]:
    """``(x, c, node)`` where ``name`` is ``x + c`` with a constant scalar ``c``; else no node."""
    node = draft.maker(name, "Add")
    for one, other in (node.inputs, node.inputs[::-1]) if node.inputs else ():
        scalar = draft.scalar(other)
        if scalar is not None and draft.scalar(one) is None:
            return one, scalar, node
    return "", nan, NO_NODE


# Gelu (the exact form), Swish and HardSwish: a product of x and something of x, the gate.


def fuse_activations(draft: Draft) -> None:
    for node in draft:
        if not is_standard(node, "Mul", "Div"):
            continue
        product = product_of(draft, node.outputs[0], node)
        if len(product.leaves) != 2:
            continue
        for value, gate in (product.leaves, product.leaves[::-1]):
            if draft.rank(value) is None or draft.rank(value) != draft.rank(node.outputs[0]):
                continue
            for operator, match in _FORMS.items():
                inside = match(draft, value, gate, product.factor)
                if inside:
                    fused = draft.node(operator, (value,), node.outputs, node.name)
                    draft.fuse(node, [*product.parts, *inside], fused)
                    break


def _gelu(draft: Draft, value: str, gate: str, factor: float) -> list[Node]:
    """The nodes of ``gate = 1 + erf(value / sqrt 2)``, half of which is the factor; else none."""
    inside, one, add = sum_with_scalar(draft, gate)
    erf = draft.maker(inside, "Erf")
    inner = product_of(draft, erf.input(0))
    is_gelu = inner.leaves == [value] and is_close(inner.factor, sqrt(0.5))
    is_gelu = is_gelu and is_close(factor, 0.5) and is_close(one, 1)
    return [add, erf, *inner.parts] if is_gelu else []


def _swish(draft: Draft, value: str, gate: str, factor: float) -> list[Node]:
    """``gate = sigmoid(value)``."""
    sigmoid = draft.maker(gate, "Sigmoid")
    return [sigmoid] if sigmoid.input(0) == value and factor == 1.0 else []


def _hard_swish(draft: Draft, value: str, gate: str, factor: float) -> list[Node]:
    """``gate = clip(value + 3, 0, 6)``, a sixth of which is the factor."""
    clip = draft.maker(gate, "Clip")
    inside, three, add = sum_with_scalar(draft, clip.input(0))
    bounds = (draft.scalar(clip.input(1)), draft.scalar(clip.input(2)), three)
    fits = inside == value and bounds == (0, 6, 3) and is_close(factor, 1 / 6)
    return [clip, add] if fits else []


_FORMS = {"Gelu": _gelu, "Swish": _swish, "HardSwish": _hard_swish}


# softmax(scale · q kᵀ + mask) v.


def fuse_attention(draft: Draft) -> None:
    for node in draft:
        if not is_standard(node, "MatMul"):
            continue
        weights, guards = _without_nan_guard(draft, node.inputs[0])
        softmax = draft.maker(weights, "Softmax")
        if softmax.integer("axis", -1) not in (-1, 3):
            continue
        scores, mask = _scores(draft, softmax.input(0))
        if len(scores.leaves) != 2:
            continue
        domain, operator = ATTENTION
        fused = Node(
            operator,
            (*scores.leaves, node.inputs[1], *([mask] if mask else [])),
            node.outputs,
            {"scale": scores.factor, "zero_masked_rows": int(bool(guards))},
            domain,
            name=node.name,
        )
        if _fits(draft, *fused.inputs):
            draft.fuse(node, [*guards, softmax, *scores.parts], fused)


def _without_nan_guard(draft: Draft, name: str) -> tuple[str, list[Node]]:
    """Look through ``where(isnan(w), 0, w)``, which exporters put behind the softmax."""
    where = draft.maker(name, "Where")
    guard = draft.maker(where.input(0), "IsNaN")
    if draft.scalar(where.input(1)) != 0 or guard.input(0) != where.input(2):
        return name, []
    return where.inputs[2], [where, guard]


def _scores(draft: Draft, name: str) -> tuple[Product, str]:
    """``scale · query @ key`` with its leaves query and key, and the mask, or ``""``.

    No leaves where ``name`` is nothing of the kind.
    """
    add = draft.maker(name, "Add")
    for scores, mask in (add.inputs, add.inputs[::-1]) if add.inputs else [(name, "")]:
        product = product_of(draft, scores)
        matmul = draft.maker(product.leaves[0] if len(product.leaves) == 1 else "", "MatMul")
        if not matmul.operator:
            continue
        whole = Product(product.factor, [], [*product.parts, matmul])
        whole.parts += [add] if mask else []
        for operand in matmul.inputs:
            found = product_of(draft, operand)
            if len(found.leaves) != 1:
                found = Product(leaves=[operand])
            whole.factor *= found.factor
            whole.leaves += found.leaves
            whole.parts += found.parts
        return whole, mask
    return Product(), ""


def _fits(draft: Draft, query: str, key: str, value: str, mask: str = "") -> bool:
    """Four dimensions each, of the mask at most, and one floating type."""
    types = [draft.type_of(name) for name in (query, key, value)]
    masked = draft.type_of(mask) if mask else types[0]
    return (
        all(each.rank == 4 for each in types)
        and masked.rank is not None
        and masked.rank <= 4
        and types[0].dtype in NARROW
        and len({each.dtype for each in (*types, masked)}) == 1
    )


# LayerNormalization and RMSNormalization.


def fuse_normalisation(draft: Draft) -> None:
    for node in draft:
        if not is_standard(node, "Div", "Mul"):
            continue
        for place in (0,) if node.operator == "Div" else (0, 1):
            if _fuse(draft, node, node.inputs[place], node.inputs[1 - place]):
                break


def _fuse(draft: Draft, root: Node, deviation: str, divisor: str) -> bool:
    """``root`` is ``d / sqrt(mean(d²) + epsilon)``, as a quotient or times the reciprocal."""
    inside, parts = _under_root(draft, divisor, reciprocal=root.operator == "Mul")
    total, epsilon, add = sum_with_scalar(draft, inside)
    mean = draft.maker(total, "ReduceMean")
    square = _square(draft, mean.input(0), deviation)
    axes = _trailing_axes(draft, mean)
    if not square.operator or not axes:
        return False
    centre = _centre(draft, deviation, axes)
    parts += [root, add, mean, square, *centre]
    source = centre[0].inputs[0] if centre else deviation
    kind = draft.type_of(source)
    if kind.shape is None or kind.dtype not in NARROW:
        return False
    if draft.rank(root.outputs[0]) != len(kind.shape):
        return False
    sizes = kind.shape[-len(axes) :]
    scale, root = _affine(draft, root, "Mul", sizes, parts)
    bias = ""
    if scale and centre:
        bias, root = _affine(draft, root, "Add", sizes, parts)
    if not scale:
        known = [size for size in sizes if isinstance(size, int)]
        if len(known) != len(sizes):
            return False
        ones = np.ones(known, dtype_of_name(kind.dtype))
        scale = draft.add_weight(ones, f"{root.outputs[0]}.scale")
    fused = draft.node(
        "LayerNormalization" if centre else "RMSNormalization",
        (source, scale, bias),
        root.outputs,
        root.name,
        axis=-len(axes),
        epsilon=epsilon,
        stash_type=1,
    )
    return draft.fuse(root, parts, fused)


def _centre(draft: Draft, deviation: str, axes: tuple[int, ...]) -> list[Node]:
    """The nodes of ``x - mean(x)``; without them the form is the root mean square."""
    difference = draft.maker(deviation, "Sub")
    mean = draft.maker(difference.input(1), "ReduceMean")
    is_centre = mean.input(0) == difference.input(0) and _trailing_axes(draft, mean) == axes
    return [difference, mean] if is_centre else []


def _under_root(draft: Draft, name: str, reciprocal: bool) -> tuple[str, list[Node]]:
    """What the square root is taken of, through a reciprocal where that is wanted; or ``""``."""
    parts: list[Node] = []
    if reciprocal:
        node = draft.maker(name, "Reciprocal", "Div", "Pow")
        parts.append(node)
        if node.operator == "Pow":
            return (node.inputs[0] if draft.scalar(node.inputs[1]) == -0.5 else ""), parts
        if node.operator == "Div" and draft.scalar(node.inputs[0]) != 1:
            return "", parts
        name = node.input(1 if node.operator == "Div" else 0)
    node = draft.maker(name, "Sqrt", "Pow")
    is_root = node.operator == "Sqrt" or draft.scalar(node.input(1)) == 0.5
    return (node.input(0) if is_root else ""), [*parts, node]


def _square(draft: Draft, name: str, value: str) -> Node:
    """The node that makes ``name``, if that is ``value²``."""
    node = draft.maker(name, "Pow", "Mul")
    is_power = node.input(0) == value and draft.scalar(node.input(1)) == 2
    return node if node.inputs == (value, value) or is_power else NO_NODE


def _trailing_axes(draft: Draft, mean: Node) -> tuple[int, ...]:
    """The reduced axes if they are the last ones and are kept as size 1; else none."""
    rank = draft.rank(mean.input(0))
    axes = draft.weights.get(mean.input(1))
    if rank is None or axes is None or not mean.integer("keepdims", 1):
        return ()
    chosen = tuple(sorted(int(axis) % rank for axis in axes.reshape(-1)))
    return chosen if chosen == tuple(range(rank - len(chosen), rank)) else ()


def _affine(
    draft: Draft, node: Node, operator: str, sizes: Sequence[Dimension], parts: list[Node]
) -> tuple[str, Node]:
    """The constant that the next node applies per element, and that node; else ``""``."""
    reader = draft.sole_reader(node.outputs[0], operator)
    for name in reader.inputs:
        array = draft.weights.get(name)
        if array is not None and array.shape == tuple(sizes):
            parts.append(reader)
            return name, reader
    return "", node
