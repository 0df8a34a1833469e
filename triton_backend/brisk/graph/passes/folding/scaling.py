"""Folds a per-channel constant factor or summand behind a convolution or Gemm into its weights."""

from __future__ import annotations

import numpy as np

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
