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
from brisk.graph.rewriting import Rewriter, optional_input, plain, rewired


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


# Folds a zero Pad before a convolution into the convolution's own padding.


def fold_padding(draft: Draft) -> int:
    graph = Rewriter(draft)
    for layer in graph:
        node = plain(layer)
        if node is None or node.operator != "Conv":
            continue
        if node.attributes.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
            continue
        pad = graph.made_by(node.inputs[0], "Pad")
        maker = graph.maker(node.inputs[0])
        if pad is None or maker is None or graph.sole_reader(node.inputs[0]) is not layer:
            continue
        amounts = _spatial_pads(graph, pad)
        if amounts is None:
            continue
        spatial = len(amounts) // 2
        own = np.array(node.attributes.get("pads", (0,) * 2 * spatial))
        if node.attributes.get("auto_pad") == "VALID":
            own = np.zeros(2 * spatial, np.int64)
        pads = tuple(int(amount) for amount in own + amounts)
        inputs = (pad.inputs[0], *node.inputs[1:])
        graph.remove(maker)
        graph.replace(layer, layer_of(rewired(node, *inputs, pads=pads, auto_pad="NOTSET")))
    return graph.commit()


def _spatial_pads(graph: Rewriter, pad: Node) -> np.ndarray | None:
    """Begins then ends of the spatial axes; None unless it adds zeros to those only."""
    amounts = graph.constant(optional_input(pad, 1))
    value = optional_input(pad, 2)
    rank = graph.draft.type_of(pad.inputs[0]).rank
    if pad.attributes.get("mode", "constant") != "constant" or amounts is None or rank is None:
        return None
    if value and graph.scalar(value) != 0:
        return None
    axes = list(range(rank))
    if optional_input(pad, 3):
        chosen = graph.constant(optional_input(pad, 3))
        if chosen is None:
            return None
        axes = [int(axis) % rank for axis in chosen]
    table = np.zeros((2, rank), np.int64)
    table[:, axes] = amounts.reshape(2, -1)
    if table[:, :2].any() or (table < 0).any():
        return None
    return table[:, 2:].reshape(-1)
