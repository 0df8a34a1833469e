"""Folds a constant factor or summand before a convolution into its weights.

``W (f·x + a) + b`` is ``(W·f) x + (b + W·a)``. A summand may move only where the convolution
pads nothing, because padding adds zeros behind it; a factor always may.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from brisk.graph.attributes import integer, integers
from brisk.graph.draft import Draft, layer_of
from brisk.graph.program import Layer, Node
from brisk.graph.rewriting import Rewriter, optional_input, plain


def fold_input_scaling(draft: Draft) -> int:
    graph = Rewriter(draft)
    for layer in graph:
        current: Layer | None = layer
        while current is not None:
            current = _folded(graph, current)
    return graph.commit()


def _folded(graph: Rewriter, layer: Layer) -> Layer | None:
    """The convolution without the constant step before it; None where there is none to fold."""
    conv = plain(layer)
    if conv is None or conv.operator != "Conv":
        return None
    weight = graph.constant(conv.inputs[1])
    step, maker = graph.made_by(conv.inputs[0], "Mul", "Add"), graph.maker(conv.inputs[0])
    if weight is None or step is None or maker is None or weight.dtype.kind != "f":
        return None
    if graph.sole_reader(conv.inputs[0]) is not layer:
        return None
    for place in (0, 1):
        constant = graph.constant(step.inputs[1 - place])
        if constant is None or constant.dtype != weight.dtype:
            continue
        values = _per_input(graph, conv, step.inputs[place], constant, weight)
        if values is None:
            continue
        inputs = _rescaled(graph, conv, step, values, weight)
        if inputs is None:
            continue
        new = layer_of(replace(conv, inputs=(step.inputs[place], *inputs)))
        graph.remove(maker)
        graph.replace(layer, new)
        return new
    return None


def _per_input(
    graph: Rewriter, conv: Node, source: str, constant: np.ndarray, weight: np.ndarray
) -> np.ndarray | None:
    """The constant as ``[channels of a group]``; None where it varies otherwise."""
    shape = graph.draft.type_of(source).shape
    if shape is None or len(shape) != weight.ndim or constant.ndim > weight.ndim:
        return None
    channels = weight.shape[1]
    aligned = (1,) * (weight.ndim - constant.ndim) + constant.shape
    if any(size != 1 for axis, size in enumerate(aligned) if axis != 1):
        return None
    if constant.size != 1 and (integer(conv, "group", 1) != 1 or shape[1] != channels):
        return None
    return np.broadcast_to(constant.reshape(-1), (channels,))


def _rescaled(
    graph: Rewriter, conv: Node, step: Node, values: np.ndarray, weight: np.ndarray
) -> tuple[str, str] | tuple[str] | None:
    """Names of the new weights and bias."""
    draft, target = graph.draft, conv.outputs[0]
    columns = values.reshape(1, -1, *[1] * (weight.ndim - 2))
    bias_name = optional_input(conv, 2)
    if step.operator == "Mul":
        scaled = draft.add_weight(weight * columns, f"{target}.weight")
        return (scaled, bias_name) if bias_name else (scaled,)
    bias = graph.constant(bias_name) if bias_name else np.zeros(weight.shape[0], weight.dtype)
    padded = any(integers(conv, "pads") or ())
    unpadded = conv.attributes.get("auto_pad", "NOTSET") in ("NOTSET", "VALID") and not padded
    if bias is None or not unpadded:
        return None
    moved = bias + (weight * columns).sum(axis=tuple(range(1, weight.ndim)))
    return conv.inputs[1], draft.add_weight(moved.astype(weight.dtype), f"{target}.bias")
