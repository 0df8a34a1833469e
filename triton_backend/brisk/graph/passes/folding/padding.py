"""Folds a zero Pad before a convolution into the convolution's own padding."""

from __future__ import annotations

import numpy as np

from brisk.graph.draft import Draft, layer_of
from brisk.graph.program import Node
from brisk.graph.rewriting import Rewriter, optional_input, plain, rewired


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
