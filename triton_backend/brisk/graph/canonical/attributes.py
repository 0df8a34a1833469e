"""Attributes that became inputs, and defaults or names that changed."""

from __future__ import annotations

import numpy as np

from brisk.graph.attributes import integer, integers, number
from brisk.graph.canonical.rules import below, upgraded
from brisk.graph.draft import Draft
from brisk.graph.files.element_types import dtype_of_element, element_of_dtype
from brisk.graph.program import Node


def _vector(draft: Draft, node: Node, name: str, values: tuple[int, ...] | None) -> str:
    """A constant int64 vector; ``""`` for None."""
    if values is None:
        return ""
    return draft.add_weight(np.array(values, np.int64), f"{node.outputs[0]}.{name}")


def scalar_like(draft: Draft, node: Node, name: str, value: float) -> tuple[str, list[Node]]:
    """A constant scalar of the first input's type, cast at run time where that is unknown."""
    hint = f"{node.outputs[0]}.{name}"
    dtype = draft.type_of(node.inputs[0]).dtype
    if dtype is not None:
        array = np.array(value, np.float64).astype(dtype_of_element(element_of_dtype(dtype)))
        return draft.add_weight(array, hint), []
    constant = draft.add_weight(np.array(value, np.float32), hint)
    cast = draft.add_value(f"{hint}.cast")
    return cast, [draft.node("CastLike", (constant, node.inputs[0]), (cast,))]


@below(11, "Clip")
def clip(node: Node, draft: Draft) -> list[Node]:
    before: list[Node] = []
    bounds = []
    for name in ("min", "max"):
        bound = ""
        if name in node.attributes:
            bound, casts = scalar_like(draft, node, name, number(node, name, 0.0))
            before += casts
        bounds.append(bound)
    return [*before, upgraded(node, node.inputs[0], *bounds, without=("min", "max"))]


@below(13, "Squeeze", "Unsqueeze", "ReduceSum")
@below(
    18,
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax"),
    *("ReduceMean", "ReduceMin", "ReduceProd", "ReduceSumSquare"),
)
def axes(node: Node, draft: Draft) -> list[Node]:
    axes = _vector(draft, node, "axes", integers(node, "axes"))
    return [upgraded(node, node.inputs[0], axes, without=("axes",))]


@below(18, "Split")
def split(node: Node, draft: Draft) -> list[Node]:
    sizes = _vector(draft, node, "split", integers(node, "split"))
    if node.version >= 13 and len(node.inputs) > 1:
        sizes = node.inputs[1]
    if sizes:
        return [upgraded(node, node.inputs[0], sizes, without=("split",))]
    return [upgraded(node, node.inputs[0], without=("split",), num_outputs=len(node.outputs))]


@below(10, "Slice")
def slice_(node: Node, draft: Draft) -> list[Node]:
    vectors = [_vector(draft, node, name, integers(node, name)) for name in _SLICE]
    return [upgraded(node, node.inputs[0], *vectors, without=_SLICE)]


_SLICE = ("starts", "ends", "axes")


@below(11, "Pad")
def pad(node: Node, draft: Draft) -> list[Node]:
    pads = _vector(draft, node, "pads", integers(node, "pads"))
    value, before = scalar_like(draft, node, "value", number(node, "value", 0.0))
    return [*before, upgraded(node, node.inputs[0], pads, value, without=("pads", "value"))]


@below(10, "TopK")
def top_k(node: Node, draft: Draft) -> list[Node]:
    count = _vector(draft, node, "k", (integer(node, "k", 1),))
    return [upgraded(node, node.inputs[0], count, without=("k",))]


@below(12, "Dropout")
def dropout(node: Node, draft: Draft) -> list[Node]:
    if len(node.outputs) > 1 and node.outputs[1]:
        ratio, before = scalar_like(draft, node, "ratio", number(node, "ratio", 0.5))
        if node.version >= 10:
            return [*before, upgraded(node, node.inputs[0], ratio, without=("ratio",))]
        mask = draft.add_value(f"{node.outputs[1]}.boolean")
        made = draft.node("Dropout", (node.inputs[0], ratio), (node.outputs[0], mask), node.name)
        cast = draft.node("CastLike", (mask, node.inputs[0]), (node.outputs[1],))
        return [*before, made, cast]
    return [draft.node("Identity", node.inputs[:1], node.outputs[:1], node.name)]


@below(20, "DFT")
def dft(node: Node, draft: Draft) -> list[Node]:
    axis = np.array(integer(node, "axis", 1), np.int64)
    length = node.inputs[1] if len(node.inputs) > 1 else ""
    name = draft.add_weight(axis, f"{node.outputs[0]}.axis")
    return [upgraded(node, node.inputs[0], length, name, without=("axis",))]


@below(11, "Scatter")
def scatter(node: Node, draft: Draft) -> list[Node]:
    return [upgraded(node, *node.inputs, operator="ScatterElements")]


@below(20, "GridSample")
def grid_sample(node: Node, draft: Draft) -> list[Node]:
    names = {"bilinear": "linear", "bicubic": "cubic"}
    mode = str(node.attributes.get("mode", "bilinear"))
    return [upgraded(node, *node.inputs, mode=names.get(mode, mode))]


@below(16, "RoiAlign")
def roi_align(node: Node, draft: Draft) -> list[Node]:
    return [upgraded(node, *node.inputs, coordinate_transformation_mode="output_half_pixel")]


@below(9, "Gemm")
def gemm(node: Node, draft: Draft) -> list[Node]:
    return [upgraded(node, *node.inputs)]
