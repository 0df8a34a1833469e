"""Upsample and the first two forms of Resize, as the newest Resize."""

from __future__ import annotations

import numpy as np

from brisk.graph.canonical.rules import below, upgraded
from brisk.graph.draft import Draft
from brisk.graph.program import Node


@below(10, "Upsample")
def upsample(node: Node, draft: Draft) -> list[Node]:
    """Upsample repeats or interpolates without an offset: asymmetric, rounding down."""
    if len(node.inputs) > 1:
        scales = node.inputs[1]
    else:
        values = np.array(node.attributes["scales"], np.float32)
        scales = draft.add_weight(values, f"{node.outputs[0]}.scales")
    return [_asymmetric(node, scales)]


@below(13, "Resize")
def resize(node: Node, draft: Draft) -> list[Node] | None:
    """Form 10 is asymmetric; form 11 spells left-out inputs as empty tensors."""
    if node.version < 11:
        shrinks = _shrinks(draft.weights.get(node.inputs[1]))
        return [_asymmetric(node, node.inputs[1], "ceil" if shrinks else "floor")]
    if node.attributes.get("coordinate_transformation_mode") == "tf_half_pixel_for_nn":
        return None
    inputs = [
        node.inputs[0],
        *("" if _is_empty(name, draft) else name for name in node.inputs[1:]),
    ]
    return [upgraded(node, *inputs)]


def _shrinks(scales: np.ndarray | None) -> bool:
    """Form 10 rounds up where it shrinks: its test cases and ONNX Runtime do."""
    return scales is not None and bool((scales <= 1).all() and (scales < 1).any())


def _asymmetric(node: Node, scales: str, rounding: str = "floor") -> Node:
    mode = str(node.attributes.get("mode", "nearest"))
    return upgraded(
        node,
        *(node.inputs[0], "", scales),
        operator="Resize",
        without=("scales",),
        mode="linear" if mode in ("linear", "bilinear") else mode,
        coordinate_transformation_mode="asymmetric",
        nearest_mode=rounding,
    )


def _is_empty(name: str, draft: Draft) -> bool:
    array = draft.weights.get(name)
    shape = draft.type_of(name).shape if array is None else array.shape
    return shape is not None and 0 in shape
