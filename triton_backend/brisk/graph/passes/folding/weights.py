"""Scaling and shifting the output channels of an operator through its constant weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from brisk.graph.attributes import integer
from brisk.graph.program import Node
from brisk.graph.rewriting import Rewriter, optional_input

FOLDABLE = ("Conv", "ConvTranspose", "Gemm")


def output_channels(graph: Rewriter, node: Node) -> int | None:
    """How many channels a Conv, ConvTranspose or Gemm with constant weights makes."""
    weight = graph.constant(node.inputs[1])
    if weight is None or weight.dtype.kind != "f":
        return None
    if node.operator == "Conv":
        return weight.shape[0]
    if node.operator == "ConvTranspose":
        return weight.shape[1] * integer(node, "group", 1)
    return weight.shape[0 if node.attributes.get("transB", 0) else 1]


def scale_and_shift(
    graph: Rewriter, node: Node, factor: np.ndarray | None, shift: np.ndarray | None, target: str
) -> Node | None:
    """``node`` with weights and bias such that it makes ``factor · old + shift`` per channel.

    ``factor``, ``shift``: ``[channels]`` of the weights' dtype, None for 1 and 0. The new node
    writes ``target``. None where the bias is not constant or does not fit.
    """
    channels = output_channels(graph, node)
    weight = graph.constant(node.inputs[1])
    if channels is None or weight is None:
        return None
    if node.operator == "Gemm" and node.attributes.get("beta", 1.0) != 1.0:
        return None
    bias_name = optional_input(node, 2)
    bias = graph.constant(bias_name) if bias_name else np.zeros(channels, weight.dtype)
    if bias is None or (bias.size not in (1, channels)) or bias.ndim > 2:
        return None
    if bias.ndim == 2 and bias.shape[0] != 1:
        return None
    bias = np.broadcast_to(bias.reshape(-1), (channels,))
    weight_name = node.inputs[1]
    if factor is not None:
        factor = factor.astype(weight.dtype)
        weight_name = graph.draft.add_weight(_scaled(node, weight, factor), f"{target}.weight")
        bias = bias * factor
    if shift is not None:
        bias = bias + shift.astype(weight.dtype)
    bias_name = graph.draft.add_weight(np.ascontiguousarray(bias), f"{target}.bias")
    return replace(node, inputs=(node.inputs[0], weight_name, bias_name), outputs=(target,))


def _scaled(node: Node, weight: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Weights with every output channel multiplied by its factor."""
    if node.operator == "Conv":
        return weight * factor.reshape(-1, *[1] * (weight.ndim - 1))
    if node.operator == "Gemm":
        return weight * (factor[:, None] if node.attributes.get("transB", 0) else factor)
    groups = integer(node, "group", 1)
    inputs, outputs, *kernel = weight.shape
    grouped = weight.reshape(groups, inputs // groups, outputs, *kernel)
    by_group = factor.reshape(groups, 1, outputs, *[1] * len(kernel))
    return (grouped * by_group).reshape(weight.shape)
