"""Recognises LayerNormalization and RMSNormalization spelled out in elementary operators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from brisk.graph.draft import Draft, is_standard
from brisk.graph.files.element_types import dtype_of_name
from brisk.graph.passes.products import sum_with_scalar
from brisk.graph.program import Dimension, Node

_NARROW = ("float32", "float16", "bfloat16")
"""The operators compute in float32, so double precision stays spelled out."""


def fuse_normalisation(draft: Draft) -> None:
    for node in draft:
        if not is_standard(node, "Div", "Mul"):
            continue
        for place in (0,) if node.operator == "Div" else (0, 1):
            if _fuse(draft, node, node.inputs[place], node.inputs[1 - place]):
                break


def _fuse(draft: Draft, root: Node, deviation: str, divisor: str) -> bool:
    """``root`` is ``d / sqrt(mean(d²) + epsilon)``, as a quotient or times the reciprocal."""
    inside = _under_root(draft, divisor, reciprocal=root.operator == "Mul")
    total = None if inside is None else sum_with_scalar(draft, inside[0])
    mean = None if total is None else draft.maker(total[0], "ReduceMean")
    if inside is None or total is None or mean is None:
        return False
    square = _square(draft, mean.inputs[0], deviation)
    axes = _trailing_axes(draft, mean)
    if square is None or not axes:
        return False
    parts = [root, *inside[1], total[2], mean, square]
    centre = _centre(draft, deviation, axes)
    parts += centre
    source = centre[0].inputs[0] if centre else deviation
    kind = draft.type_of(source)
    if kind.shape is None or kind.dtype not in _NARROW:
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
        epsilon=total[1],
        stash_type=1,
    )
    return draft.fuse(root, parts, fused)


def _centre(draft: Draft, deviation: str, axes: tuple[int, ...]) -> list[Node]:
    """The nodes of ``x - mean(x)``; without them the form is the root mean square."""
    difference = draft.maker(deviation, "Sub")
    mean = None if difference is None else draft.maker(difference.inputs[1], "ReduceMean")
    if difference is None or mean is None or mean.inputs[0] != difference.inputs[0]:
        return []
    return [difference, mean] if _trailing_axes(draft, mean) == axes else []


def _under_root(draft: Draft, name: str, reciprocal: bool) -> tuple[str, list[Node]] | None:
    """What the square root is taken of, through a reciprocal where that is wanted."""
    parts: list[Node] = []
    if reciprocal:
        node = draft.maker(name, "Reciprocal", "Div", "Pow")
        if node is None:
            return None
        parts.append(node)
        if node.operator == "Pow":
            return (node.inputs[0], parts) if draft.scalar(node.inputs[1]) == -0.5 else None
        if node.operator == "Div" and draft.scalar(node.inputs[0]) != 1:
            return None
        name = node.inputs[-1]
    node = draft.maker(name, "Sqrt", "Pow")
    if node is None or (node.operator == "Pow" and draft.scalar(node.inputs[1]) != 0.5):
        return None
    return node.inputs[0], [*parts, node]


def _square(draft: Draft, name: str, value: str) -> Node | None:
    """The node that makes ``name``, if that is ``value²``."""
    node = draft.maker(name, "Pow", "Mul")
    if node is None or node.inputs[0] != value:
        return None
    if node.operator == "Mul":
        return node if node.inputs[1] == value else None
    return node if draft.scalar(node.inputs[1]) == 2 else None


def _trailing_axes(draft: Draft, mean: Node) -> tuple[int, ...]:
    """The reduced axes if they are the last ones and are kept as size 1; else none."""
    rank = draft.rank(mean.inputs[0])
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
    for name in () if reader is None else reader.inputs:
        array = draft.weights.get(name)
        if reader is not None and array is not None and array.shape == tuple(sizes):
            parts.append(reader)
            return name, reader
    return "", node
