"""Folds a per-channel constant factor or summand behind a convolution or Gemm into its weights."""

from __future__ import annotations

import numpy as np

from brisk.graph.attributes import number
from brisk.graph.draft import Draft, layer_of
from brisk.graph.passes.folding.weights import FOLDABLE, output_channels, scale_and_shift
from brisk.graph.program import Node
from brisk.graph.rewriting import Rewriter, plain

_OPERATORS = ("Mul", "Div", "Add", "Sub")


def fold_scaling(draft: Draft) -> int:
    graph = Rewriter(draft)
    for layer in graph:
        node = plain(layer)
        if node is None or node.operator not in _OPERATORS:
            continue
        for place in (0, 1) if node.operator in ("Mul", "Add") else (0,):
            source, constant = node.inputs[place], graph.constant(node.inputs[1 - place])
            main = graph.made_by(source, *FOLDABLE)
            maker = graph.maker(source)
            if main is None or maker is None or constant is None:
                continue
            if graph.sole_reader(source) is not layer:
                continue
            values = _per_channel(graph, main, node, constant)
            if values is None:
                continue
            factor, shift = _parts(node.operator, values)
            folded = scale_and_shift(graph, main, factor, shift, node.outputs[0])
            if folded is not None:
                graph.remove(maker)
                graph.replace(layer, layer_of(folded))
                break
    return graph.commit()


def _parts(operator: str, values: np.ndarray) -> tuple[np.ndarray | None, np.ndarray | None]:
    if operator == "Mul":
        return values, None
    if operator == "Div":
        return 1 / values, None
    return None, values if operator == "Add" else -values


def _per_channel(
    graph: Rewriter, main: Node, node: Node, constant: np.ndarray
) -> np.ndarray | None:
    """The constant as ``[channels]``; None where it varies along another axis."""
    channels = output_channels(graph, main)
    rank = graph.draft.type_of(node.outputs[0]).rank
    weight = graph.constant(main.inputs[1])
    if channels is None or rank is None or weight is None or constant.dtype != weight.dtype:
        return None
    if main.operator != "Gemm" and rank != weight.ndim:
        return None
    if constant.size not in (1, channels):
        return None
    if constant.ndim > rank or (node.operator == "Div" and not constant.all()):
        return None
    shape = (1,) * (rank - constant.ndim) + constant.shape
    if any(size != 1 for axis, size in enumerate(shape) if axis != 1):
        return None
    return np.broadcast_to(constant.reshape(-1), (channels,))


# Folds a BatchNormalization into the convolution or Gemm before it.
#
# ``y = s·(W x + b - mean) + B`` with ``s = scale / sqrt(variance + epsilon)`` is the same
# operator with weights ``s·W`` and bias ``s·(b - mean) + B``.


def fold_batch_normalization(draft: Draft) -> int:
    graph = Rewriter(draft)
    for layer in graph:
        node = plain(layer)
        if node is None or node.operator != "BatchNormalization" or len(node.outputs) != 1:
            continue
        if node.attributes.get("training_mode", 0):
            continue
        source = node.inputs[0]
        maker = graph.maker(source)
        parameters = [graph.constant(name) for name in node.inputs[1:]]
        if maker is None or graph.sole_reader(source) is not layer:
            continue
        main = graph.made_by(source, *FOLDABLE)
        scale, bias, mean, variance = parameters
        if main is None or scale is None or bias is None or mean is None or variance is None:
            continue
        epsilon = number(node, "epsilon", 1e-5)
        factor = scale / np.sqrt(variance + np.asarray(epsilon, variance.dtype))
        folded = scale_and_shift(graph, main, factor, bias - mean * factor, node.outputs[0])
        if folded is not None:
            graph.remove(maker)
            graph.replace(layer, layer_of(folded))
    return graph.commit()
