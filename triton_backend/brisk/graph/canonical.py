"""Brings every node to its operator's newest form, so that solutions know one form each.

Most definitions only ever gained types or optional parts: their nodes just take the newest
version. The rules here rewrite the rest (attributes that became inputs, changed defaults, other
meanings). Where a rule gives up, the node keeps the version it was written for. Source: ONNX's
Changelog.md and Operators.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from brisk.graph import contributed
from brisk.graph.draft import Draft, without_trailing_gaps
from brisk.graph.files.element_types import dtype_of_name
from brisk.graph.operators import check_node, newest_version
from brisk.graph.program import Attribute, Node

_KEPT = {"Scan": 9, "Attention": 24}
"""Operators whose definitions before the given version mean something that newer ones do not."""

_Rule: TypeAlias = Callable[[Node, Draft], "list[Node] | None"]
"""Nodes that mean the same in newest form; None to keep the node as it is."""

_RULES: dict[str, tuple[int, _Rule]] = {}
"""By operator: the rule, and the version below which it applies."""


def canonicalise(node: Node, draft: Draft) -> list[Node]:
    """Canonical nodes that mean the same as ``node``, whose version is its model's opset.

    May add constants and types to ``draft``. Raises UnsupportedOperatorError or
    InvalidModelError where the node does not fit its operator's definition.
    """
    if node.domain == contributed.DOMAIN:
        standard = contributed.expressed(node, draft)
        if standard is not None:
            return standard
    version = int(check_node(node).since_version)
    node = replace(node, inputs=without_trailing_gaps(node.inputs), version=version)
    if node.domain:
        return [node]
    below, rule = _RULES.get(node.operator, (0, None))
    if rule is not None and version < below:
        return rule(node, draft) or [node]
    newest = newest_version(node.operator, "")
    if newest == 0 or version < _KEPT.get(node.operator, 0):
        return [node]
    return [replace(node, version=newest)]


def _below(version: int, *operators: str) -> Callable[[_Rule], _Rule]:
    """Register a rule for definitions of ``operators`` older than ``version``."""

    def register(rule: _Rule) -> _Rule:
        _RULES.update(dict.fromkeys(operators, (version, rule)))
        return rule

    return register


def _upgraded(
    node: Node,
    *inputs: str,
    operator: str = "",
    without: tuple[str, ...] = (),
    **attributes: Attribute,
) -> Node:
    """``node`` in its newest version with other inputs and changed attributes."""
    kept = {key: value for key, value in node.attributes.items() if key not in without}
    operator = operator or node.operator
    return replace(
        node,
        operator=operator,
        inputs=without_trailing_gaps(inputs),
        attributes={**kept, **attributes},
        version=newest_version(operator, ""),
    )


# Attributes that became inputs.


def _vector(draft: Draft, node: Node, name: str) -> str:
    """A list of integers as a constant; ``""`` where it is absent."""
    values = node.integers(name)
    if values is None:
        return ""
    return draft.add_weight(np.array(values, np.int64), f"{node.outputs[0]}.{name}")


@_below(13, "Squeeze", "Unsqueeze", "ReduceSum")
@_below(
    18,
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax"),
    *("ReduceMean", "ReduceMin", "ReduceProd", "ReduceSumSquare"),
)
def _axes(node: Node, draft: Draft) -> list[Node]:
    return [_upgraded(node, node.inputs[0], _vector(draft, node, "axes"), without=("axes",))]


@_below(10, "Slice")
def _slice(node: Node, draft: Draft) -> list[Node]:
    names = ("starts", "ends", "axes")
    vectors = [_vector(draft, node, name) for name in names]
    return [_upgraded(node, node.inputs[0], *vectors, without=names)]


@_below(18, "Split")
def _split(node: Node, draft: Draft) -> list[Node]:
    sizes = node.input(1) or _vector(draft, node, "split")
    if sizes:
        return [_upgraded(node, node.inputs[0], sizes, without=("split",))]
    return [_upgraded(node, node.inputs[0], without=("split",), num_outputs=len(node.outputs))]


@_below(11, "Clip")
def _clip(node: Node, draft: Draft) -> list[Node]:
    before: list[Node] = []
    bounds = []
    for name in ("min", "max"):
        bound = ""
        if name in node.attributes:
            bound, casts = draft.scalar_like(node, name, node.number(name, 0.0))
            before += casts
        bounds.append(bound)
    return [*before, _upgraded(node, node.inputs[0], *bounds, without=("min", "max"))]


@_below(11, "Pad")
def _pad(node: Node, draft: Draft) -> list[Node]:
    pads = _vector(draft, node, "pads")
    value, before = draft.scalar_like(node, "value", node.number("value", 0.0))
    return [*before, _upgraded(node, node.inputs[0], pads, value, without=("pads", "value"))]


@_below(10, "TopK")
def _top_k(node: Node, draft: Draft) -> list[Node]:
    count = np.array([node.integer("k", 1)], np.int64)
    name = draft.add_weight(count, f"{node.outputs[0]}.k")
    return [_upgraded(node, node.inputs[0], name, without=("k",))]


@_below(12, "Dropout")
def _dropout(node: Node, draft: Draft) -> list[Node]:
    if not any(node.outputs[1:]):
        return [draft.node("Identity", node.inputs[:1], node.outputs[:1], node.name)]
    ratio, before = draft.scalar_like(node, "ratio", node.number("ratio", 0.5))
    if node.version >= 10:
        return [*before, _upgraded(node, node.inputs[0], ratio, without=("ratio",))]
    mask = draft.fresh(f"{node.outputs[1]}.boolean")
    made = draft.node("Dropout", (node.inputs[0], ratio), (node.outputs[0], mask), node.name)
    return [*before, made, draft.node("CastLike", (mask, node.inputs[0]), (node.outputs[1],))]


@_below(20, "DFT")
def _dft(node: Node, draft: Draft) -> list[Node]:
    axis = draft.add_weight(np.array(node.integer("axis", 1), np.int64), f"{node.outputs[0]}.axis")
    return [_upgraded(node, node.inputs[0], node.input(1), axis, without=("axis",))]


# Names and defaults that changed.


@_below(11, "Scatter")
def _scatter(node: Node, draft: Draft) -> list[Node]:
    return [_upgraded(node, *node.inputs, operator="ScatterElements")]


@_below(20, "GridSample")
def _grid_sample(node: Node, draft: Draft) -> list[Node]:
    mode = str(node.attributes.get("mode", "bilinear"))
    names = {"bilinear": "linear", "bicubic": "cubic"}
    return [_upgraded(node, *node.inputs, mode=names.get(mode, mode))]


@_below(16, "RoiAlign")
def _roi_align(node: Node, draft: Draft) -> list[Node]:
    return [_upgraded(node, *node.inputs, coordinate_transformation_mode="output_half_pixel")]


# Upsample and the first two forms of Resize, as the newest Resize.


@_below(10, "Upsample")
def _upsample(node: Node, draft: Draft) -> list[Node]:
    """Upsample repeats or interpolates without an offset: asymmetric, rounding down."""
    scales = node.input(1)
    if not scales:
        values = np.array(node.attributes["scales"], np.float32)
        scales = draft.add_weight(values, f"{node.outputs[0]}.scales")
    return [_asymmetric(node, scales)]


@_below(13, "Resize")
def _resize(node: Node, draft: Draft) -> list[Node] | None:
    """Form 10 is asymmetric; form 11 spells left-out inputs as empty tensors."""
    if node.version < 11:
        scales = draft.weights.get(node.inputs[1])
        # It rounds up where it shrinks: its test cases and ONNX Runtime do.
        shrinks = scales is not None and (scales <= 1).all() and (scales < 1).any()
        return [_asymmetric(node, node.inputs[1], "ceil" if shrinks else "floor")]
    if node.attributes.get("coordinate_transformation_mode") == "tf_half_pixel_for_nn":
        return None
    rest = ["" if 0 in (draft.type_of(name).shape or ()) else name for name in node.inputs[1:]]
    return [_upgraded(node, node.inputs[0], *rest)]


def _asymmetric(node: Node, scales: str, rounding: str = "floor") -> Node:
    mode = str(node.attributes.get("mode", "nearest"))
    return _upgraded(
        node,
        *(node.inputs[0], "", scales),
        operator="Resize",
        without=("scales",),
        mode="linear" if mode == "bilinear" else mode,
        coordinate_transformation_mode="asymmetric",
        nearest_mode=rounding,
    )


# Operators whose meaning changed.


@_below(13, "Softmax", "LogSoftmax", "Hardmax")
def _matrix_softmax(node: Node, draft: Draft) -> list[Node]:
    """Their input is a matrix split at ``axis``.

    One axis where the others behind it have size 1, else through an explicit matrix.
    """
    axis = node.integer("axis", 1)
    if axis == -1:
        return [_upgraded(node, *node.inputs, axis=-1)]
    shape = draft.type_of(node.inputs[0]).shape
    if shape is not None:
        axis = axis + len(shape) if axis < 0 else axis
        wide = [place for place in range(axis, len(shape)) if shape[place] != 1]
        if len(wide) <= 1 and axis < len(shape):
            return [_upgraded(node, *node.inputs, axis=wide[0] if wide else axis)]
    (source,), (target,) = node.inputs, node.outputs
    size, matrix, rows = (draft.fresh(f"{target}.{part}") for part in ("shape", "matrix", "rows"))
    return [
        draft.node("Shape", (source,), (size,)),
        draft.node("Flatten", (source,), (matrix,), axis=axis),
        draft.node(node.operator, (matrix,), (rows,), node.name, axis=1),
        draft.node("Reshape", (rows, size), (target,), allowzero=1),
    ]


@_below(14, "BatchNormalization")
def _batch_normalization(node: Node, draft: Draft) -> list[Node] | None:
    """Before 14 the number of outputs says whether it trains; before 9 it may not be spatial."""
    if any(node.outputs[1:]):
        return None
    if node.integer("spatial", 1):
        return [_upgraded(node, *node.inputs, without=("spatial",), training_mode=0)]
    source, scale, bias, mean, variance = node.inputs
    (target,) = node.outputs[:1]
    dtype = dtype_of_name(draft.type_of(source).dtype or "float32")
    epsilon = np.array(node.number("epsilon", 1e-5)).astype(dtype)
    addend = draft.add_weight(epsilon, f"{target}.epsilon")
    centred, shifted, deviation, normal, scaled = (
        draft.fresh(f"{target}.{part}")
        for part in ("centred", "shifted", "deviation", "normal", "scaled")
    )
    return [
        draft.node("Sub", (source, mean), (centred,)),
        draft.node("Add", (variance, addend), (shifted,)),
        draft.node("Sqrt", (shifted,), (deviation,)),
        draft.node("Div", (centred, deviation), (normal,)),
        draft.node("Mul", (normal, scale), (scaled,)),
        draft.node("Add", (scaled, bias), (target,), node.name),
    ]


@_below(21, "GroupNormalization")
def _group_normalization(node: Node, draft: Draft) -> list[Node] | None:
    """Before 21 scale and bias are per group; since then per channel."""
    shape = draft.type_of(node.inputs[0]).shape
    groups = node.integer("num_groups", 1)
    channels = shape[1] if shape is not None and len(shape) > 1 else None
    if not isinstance(channels, int):
        return None
    target = node.outputs[0]
    one = draft.add_weight(np.array([1], np.int64), f"{target}.axis")
    size = draft.add_weight(np.array([groups, channels // groups], np.int64), f"{target}.size")
    every = draft.add_weight(np.array([-1], np.int64), f"{target}.every")
    nodes: list[Node] = []
    for name in node.inputs[1:]:
        column, table, flat = (
            draft.fresh(f"{name}.{part}") for part in ("column", "table", "channels")
        )
        nodes += [
            draft.node("Unsqueeze", (name, one), (column,)),
            draft.node("Expand", (column, size), (table,)),
            draft.node("Reshape", (table, every), (flat,)),
        ]
    parameters = [each.outputs[0] for each in nodes[2::3]]
    return [*nodes, _upgraded(node, node.inputs[0], *parameters)]
