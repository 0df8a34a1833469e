"""Recognises LayerNormalization and RMSNormalization spelled out in elementary operators."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brisk.graph.draft import Draft
from brisk.graph.files.element_types import dtype_of_element, element_of_dtype
from brisk.graph.passes.folding.products import sum_with_scalar
from brisk.graph.program import Layer, Node
from brisk.graph.rewriting import Rewriter, optional_input, plain

_NARROW = ("float32", "float16", "bfloat16")
"""The operators compute in float32, so double precision stays spelled out."""


@dataclass(slots=True)
class _NormMatch:
    source: str
    axes: tuple[int, ...]
    epsilon: float
    centred: bool
    parts: list[Layer]
    root: Layer


def fuse_layer_normalization(draft: Draft) -> int:
    graph = Rewriter(draft)
    for layer in graph:
        node = plain(layer)
        if node is None or node.operator not in ("Div", "Mul"):
            continue
        match = _normalised(graph, layer, node)
        if match is not None and draft.type_of(match.source).dtype in _NARROW:
            _fuse(graph, match)
    return graph.commit()


def _normalised(graph: Rewriter, layer: Layer, node: Node) -> _NormMatch | None:
    """``d / sqrt(mean(d²) + epsilon)``, as a quotient or times the reciprocal."""
    places = ((0, 1),) if node.operator == "Div" else ((0, 1), (1, 0))
    for place, other in places:
        root = _root(graph, node.inputs[other], reciprocal=node.operator == "Mul")
        if root is None:
            continue
        inside, root_parts = root
        found = sum_with_scalar(graph, inside)
        mean = None if found is None else graph.made_by(found[0], "ReduceMean")
        if found is None or mean is None:
            continue
        deviation = node.inputs[place]
        square = graph.maker(mean.inputs[0])
        axes = _trailing_axes(graph, mean)
        if square is None or axes is None or not _is_square(graph, mean.inputs[0], deviation):
            continue
        variance = graph.maker(found[0])
        assert variance is not None
        parts = [*root_parts, found[2], variance, square]
        return _centre(
            graph, deviation, _NormMatch(deviation, axes, found[1], False, parts, layer)
        )
    return None


def _root(graph: Rewriter, name: str, reciprocal: bool) -> tuple[str, list[Layer]] | None:
    """What the square root is taken of, through a reciprocal where that is wanted."""
    parts: list[Layer] = []
    if reciprocal:
        node, layer = graph.made_by(name, "Reciprocal", "Div", "Pow"), graph.maker(name)
        if node is None or layer is None:
            return None
        parts.append(layer)
        if node.operator == "Pow":
            return (node.inputs[0], parts) if graph.scalar(node.inputs[1]) == -0.5 else None
        if node.operator == "Div" and graph.scalar(node.inputs[0]) != 1:
            return None
        name = node.inputs[-1]
    node, layer = graph.made_by(name, "Sqrt", "Pow"), graph.maker(name)
    if node is None or layer is None:
        return None
    if node.operator == "Pow" and graph.scalar(node.inputs[1]) != 0.5:
        return None
    return node.inputs[0], [*parts, layer]


def _is_square(graph: Rewriter, name: str, value: str) -> bool:
    node = graph.made_by(name, "Pow", "Mul")
    if node is None or node.inputs[0] != value:
        return False
    return node.inputs[1] == value if node.operator == "Mul" else graph.scalar(node.inputs[1]) == 2


def _trailing_axes(graph: Rewriter, mean: Node) -> tuple[int, ...] | None:
    """The reduced axes if they are the last ones and are kept as size 1."""
    rank = graph.draft.type_of(mean.inputs[0]).rank
    axes = graph.constant(optional_input(mean, 1))
    if rank is None or axes is None or not mean.attributes.get("keepdims", 1):
        return None
    chosen = tuple(sorted(int(axis) % rank for axis in axes.reshape(-1)))
    return chosen if chosen == tuple(range(rank - len(chosen), rank)) and chosen else None


def _centre(graph: Rewriter, deviation: str, match: _NormMatch) -> _NormMatch:
    """Extend over ``d = x - mean(x)``; without it the form is the root mean square."""
    sub, layer = graph.made_by(deviation, "Sub"), graph.maker(deviation)
    mean = None if sub is None else graph.made_by(sub.inputs[1], "ReduceMean")
    if sub is None or layer is None or mean is None or mean.inputs[0] != sub.inputs[0]:
        return match
    mean_layer = graph.maker(sub.inputs[1])
    if mean_layer is None or _trailing_axes(graph, mean) != match.axes:
        return match
    match.source, match.centred = sub.inputs[0], True
    match.parts += [layer, mean_layer]
    return match


def _fuse(graph: Rewriter, match: _NormMatch) -> None:
    draft = graph.draft
    shape = draft.type_of(match.source).shape
    assert shape is not None
    if draft.type_of(match.root.outputs[0]).rank != len(shape):
        return
    sizes = shape[match.axes[0] :]
    root, parts = match.root, [match.root, *match.parts]
    scale, root = _affine(graph, root, "Mul", sizes, parts)
    bias = ""
    if scale and match.centred:
        bias, root = _affine(graph, root, "Add", sizes, parts)
    if not scale:
        if not all(isinstance(size, int) for size in sizes):
            return
        dtype = dtype_of_element(element_of_dtype(draft.type_of(match.source).dtype or ""))
        ones = np.ones([int(size) for size in sizes if size is not None], dtype)
        scale = draft.add_weight(ones, f"{root.outputs[0]}.scale")
    main = draft.node(
        "LayerNormalization" if match.centred else "RMSNormalization",
        (match.source, scale, bias),
        root.outputs,
        root.name,
        axis=match.axes[0] - len(shape),
        epsilon=match.epsilon,
        stash_type=1,
    )
    graph.fuse(root, parts, main)


def _affine(
    graph: Rewriter,
    layer: Layer,
    operator: str,
    sizes: tuple[int | str | None, ...],
    parts: list[Layer],
) -> tuple[str, Layer]:
    """The constant that the next layer applies per element, and that layer; else ``""``."""
    reader = graph.sole_reader(layer.outputs[0])
    node = None if reader is None else plain(reader)
    if reader is None or node is None or node.operator != operator:
        return "", layer
    for name in node.inputs:
        array = graph.constant(name)
        if array is not None and array.shape == sizes:
            parts.append(reader)
            return name, reader
    return "", layer
