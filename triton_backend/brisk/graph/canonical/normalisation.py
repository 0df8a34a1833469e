"""Normalisations whose meaning or parameters changed."""

from __future__ import annotations

import numpy as np

from brisk.graph.attributes import integer, number
from brisk.graph.canonical.rules import below, upgraded
from brisk.graph.draft import Draft
from brisk.graph.files.element_types import dtype_of_element, element_of_dtype
from brisk.graph.program import Node


@below(14, "BatchNormalization")
def batch_normalization(node: Node, draft: Draft) -> list[Node] | None:
    """Before 14 the number of outputs says whether it trains; before 9 it may not be spatial."""
    if any(node.outputs[1:]):
        return None
    if integer(node, "spatial", 1):
        return [upgraded(node, *node.inputs, without=("spatial",), training_mode=0)]
    source, scale, bias, mean, variance = node.inputs
    (target,) = node.outputs[:1]
    dtype = draft.type_of(source).dtype or "float32"
    epsilon = draft.add_weight(
        np.array(number(node, "epsilon", 1e-5)).astype(dtype_of_element(element_of_dtype(dtype))),
        f"{target}.epsilon",
    )
    centred, shifted, deviation, normal, scaled = (
        draft.add_value(f"{target}.{part}")
        for part in ("centred", "shifted", "deviation", "normal", "scaled")
    )
    return [
        draft.node("Sub", (source, mean), (centred,)),
        draft.node("Add", (variance, epsilon), (shifted,)),
        draft.node("Sqrt", (shifted,), (deviation,)),
        draft.node("Div", (centred, deviation), (normal,)),
        draft.node("Mul", (normal, scale), (scaled,)),
        draft.node("Add", (scaled, bias), (target,), node.name),
    ]


@below(21, "GroupNormalization")
def group_normalization(node: Node, draft: Draft) -> list[Node] | None:
    """Before 21 scale and bias are per group; since then per channel."""
    shape = draft.type_of(node.inputs[0]).shape
    groups = integer(node, "num_groups", 1)
    channels = shape[1] if shape is not None and len(shape) > 1 else None
    if not isinstance(channels, int):
        return None
    before: list[Node] = []
    per_channel = []
    for name in node.inputs[1:]:
        array = draft.weights.get(name)
        if array is not None:
            repeated = np.repeat(array, channels // groups)
            per_channel.append(draft.add_weight(repeated, f"{name}.channels"))
            continue
        column, table, flat = (
            draft.add_value(f"{name}.{part}") for part in ("column", "table", "channels")
        )
        one = draft.add_weight(np.array([1], np.int64), f"{name}.axis")
        size = draft.add_weight(np.array([groups, channels // groups], np.int64), f"{name}.size")
        all_ = draft.add_weight(np.array([-1], np.int64), f"{name}.all")
        before += [
            draft.node("Unsqueeze", (name, one), (column,)),
            draft.node("Expand", (column, size), (table,)),
            draft.node("Reshape", (table, all_), (flat,)),
        ]
        per_channel.append(flat)
    return [*before, upgraded(node, node.inputs[0], *per_channel)]
