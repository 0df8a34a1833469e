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

from brisk.graph.contributed import CONTRIBUTED, DOMAIN
from brisk.graph.draft import Draft, Rewriting, without_trailing_gaps
from brisk.graph.files.element_types import dtype_of_name
from brisk.graph.operators import check_node, newest_version
from brisk.graph.program import Node

_KEPT = {"Scan": 9, "Attention": 24}
"""Operators whose definitions before the given version mean something that newer ones do not."""

_Rule: TypeAlias = Callable[[Rewriting], "list[Node] | None"]
"""Nodes that mean the same in newest form; None to keep the node as it is."""

_RULES: dict[str, tuple[int, _Rule]] = {}
"""By operator: the rule, and the version below which it applies."""


def canonicalise(node: Node, draft: Draft) -> list[Node]:
    """Canonical nodes that mean the same as ``node``, whose version is its model's opset.

    May add constants and types to ``draft``. Raises UnsupportedOperatorError or
    InvalidModelError where the node does not fit its operator's definition.
    """
    if node.domain == DOMAIN and node.operator in CONTRIBUTED:
        standard = CONTRIBUTED[node.operator](Rewriting(draft, node))
        if standard is not None:
            return standard
    version = int(check_node(node).since_version)
    node = replace(node, inputs=without_trailing_gaps(node.inputs), version=version)
    if node.domain:
        return [node]
    below, rule = _RULES.get(node.operator, (0, None))
    if rule is not None and version < below:
        return rule(Rewriting(draft, node)) or [node]
    newest = newest_version(node.operator, "")
    if newest == 0 or version < _KEPT.get(node.operator, 0):
        return [node]
    return [replace(node, version=newest)]


def oldest_alike(operator: str) -> int:
    """The first version of a standard operator that means what its newest one does."""
    below, _ = _RULES.get(operator, (0, None))
    return max(below, _KEPT.get(operator, 0))


def _below(version: int, *operators: str) -> Callable[[_Rule], _Rule]:
    """Register a rule for definitions of ``operators`` older than ``version``."""

    def register(rule: _Rule) -> _Rule:
        _RULES.update(dict.fromkeys(operators, (version, rule)))
        return rule

    return register


# Attributes that became inputs.


@_below(13, "Squeeze", "Unsqueeze", "ReduceSum")
@_below(
    18,
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax"),
    *("ReduceMean", "ReduceMin", "ReduceProd", "ReduceSumSquare"),
)
def _axes(new: Rewriting) -> list[Node]:
    return new.upgraded(new.vector("axes"), without=("axes",))


@_below(10, "Slice")
def _slice(new: Rewriting) -> list[Node]:
    names = ("starts", "ends", "axes")
    return new.upgraded(*map(new.vector, names), without=names)


@_below(18, "Split")
def _split(new: Rewriting) -> list[Node]:
    sizes = new.node.input(1) or new.vector("split")
    if sizes:
        return new.upgraded(sizes, without=("split",))
    return new.upgraded(without=("split",), num_outputs=len(new.node.outputs))


@_below(11, "Clip")
def _clip(new: Rewriting) -> list[Node]:
    names = ("min", "max")
    bounds = [new.scalar(each, 0.0) if each in new.node.attributes else "" for each in names]
    return new.upgraded(*bounds, without=names)


@_below(11, "Pad")
def _pad(new: Rewriting) -> list[Node]:
    value = new.scalar("value", 0.0)
    return new.upgraded(new.vector("pads"), value, without=("pads", "value"))


@_below(10, "TopK")
def _top_k(new: Rewriting) -> list[Node]:
    return new.upgraded(new.constant(new.node.integer("k", 1)), without=("k",))


@_below(12, "Dropout")
def _dropout(new: Rewriting) -> list[Node]:
    node = new.node
    if not any(node.outputs[1:]):
        return new.into("Identity", node.inputs[0], outputs=node.outputs[:1])
    ratio = new.scalar("ratio", 0.5)
    if node.version >= 10:
        return new.upgraded(ratio, without=("ratio",))
    mask = new.draft.fresh(f"{node.outputs[1]}.boolean")
    new.into("Dropout", node.inputs[0], ratio, outputs=(node.outputs[0], mask))
    return new.into("CastLike", mask, node.inputs[0], outputs=node.outputs[1:])


@_below(20, "DFT")
def _dft(new: Rewriting) -> list[Node]:
    axis = new.draft.add_weight(np.array(new.node.integer("axis", 1)), f"{new.target}.axis")
    return new.upgraded(new.node.input(1), axis, without=("axis",))


# Names and defaults that changed.


@_below(11, "Scatter")
def _scatter(new: Rewriting) -> list[Node]:
    return new.upgraded(*new.node.inputs[1:], operator="ScatterElements")


@_below(20, "GridSample")
def _grid_sample(new: Rewriting) -> list[Node]:
    mode = str(new.node.attributes.get("mode", "bilinear"))
    names = {"bilinear": "linear", "bicubic": "cubic"}
    return new.upgraded(*new.node.inputs[1:], mode=names.get(mode, mode))


@_below(16, "RoiAlign")
def _roi_align(new: Rewriting) -> list[Node]:
    mode = "output_half_pixel"
    return new.upgraded(*new.node.inputs[1:], coordinate_transformation_mode=mode)


# Upsample and the first two forms of Resize, as the newest Resize.


@_below(10, "Upsample")
def _upsample(new: Rewriting) -> list[Node]:
    """Upsample repeats or interpolates without an offset: asymmetric, rounding down."""
    scales = new.node.input(1)
    if not scales:
        values = np.array(new.node.attributes["scales"], np.float32)
        scales = new.draft.add_weight(values, f"{new.target}.scales")
    return _asymmetric(new, scales)


@_below(13, "Resize")
def _resize(new: Rewriting) -> list[Node] | None:
    """Form 10 is asymmetric; form 11 spells left-out inputs as empty tensors."""
    node, draft = new.node, new.draft
    if node.version < 11:
        scales = draft.weights.get(node.inputs[1])
        # It rounds up where it shrinks: its test cases and ONNX Runtime do.
        shrinks = scales is not None and (scales <= 1).all() and (scales < 1).any()
        return _asymmetric(new, node.inputs[1], "ceil" if shrinks else "floor")
    if node.attributes.get("coordinate_transformation_mode") == "tf_half_pixel_for_nn":
        return None
    rest = ["" if 0 in (draft.type_of(name).shape or ()) else name for name in node.inputs[1:]]
    return new.upgraded(*rest)


def _asymmetric(new: Rewriting, scales: str, rounding: str = "floor") -> list[Node]:
    mode = str(new.node.attributes.get("mode", "nearest"))
    return new.upgraded(
        *("", scales),
        operator="Resize",
        without=("scales",),
        mode="linear" if mode == "bilinear" else mode,
        coordinate_transformation_mode="asymmetric",
        nearest_mode=rounding,
    )


# Operators whose meaning changed.


@_below(13, "Softmax", "LogSoftmax", "Hardmax")
def _matrix_softmax(new: Rewriting) -> list[Node]:
    """Their input is a matrix split at ``axis``.

    One axis where the others behind it have size 1, else through an explicit matrix.
    """
    axis, source = new.node.integer("axis", 1), new.node.inputs[0]
    if axis == -1:
        return new.upgraded(axis=-1)
    shape = new.draft.type_of(source).shape
    if shape is not None:
        axis = axis + len(shape) if axis < 0 else axis
        wide = [place for place in range(axis, len(shape)) if shape[place] != 1]
        if len(wide) <= 1 and axis < len(shape):
            return new.upgraded(axis=wide[0] if wide else axis)
    rows = new.add(new.node.operator, new.add("Flatten", source, axis=axis), axis=1)
    return new.into("Reshape", rows, new.add("Shape", source), allowzero=1)


@_below(14, "BatchNormalization")
def _batch_normalization(new: Rewriting) -> list[Node] | None:
    """Before 14 the number of outputs says whether it trains; before 9 it may not be spatial."""
    node = new.node
    if any(node.outputs[1:]):
        return None
    source, scale, bias, mean, variance = node.inputs
    if node.integer("spatial", 1):
        return new.upgraded(*node.inputs[1:], without=("spatial",), training_mode=0)
    dtype = dtype_of_name(new.draft.type_of(source).dtype or "float32")
    epsilon = np.array(node.number("epsilon", 1e-5)).astype(dtype)
    shifted = new.add("Add", variance, new.draft.add_weight(epsilon, f"{new.target}.epsilon"))
    normal = new.add("Div", new.add("Sub", source, mean), new.add("Sqrt", shifted))
    return new.into("Add", new.add("Mul", normal, scale), bias, outputs=node.outputs[:1])


@_below(21, "GroupNormalization")
def _group_normalization(new: Rewriting) -> list[Node] | None:
    """Before 21 scale and bias are per group; since then per channel."""
    shape = new.draft.type_of(new.node.inputs[0]).shape
    groups = new.node.integer("num_groups", 1)
    channels = shape[1] if shape is not None and len(shape) > 1 else None
    if not isinstance(channels, int):
        return None
    column, table, flat = (
        new.constant(*size) for size in ((-1, 1), (groups, channels // groups), (-1,))
    )
    return new.upgraded(
        *(
            new.add("Reshape", new.add("Expand", new.add("Reshape", name, column), table), flat)
            for name in new.node.inputs[1:]
        )
    )
