"""Folds a BatchNormalization into the convolution or Gemm before it.

``y = s·(W x + b - mean) + B`` with ``s = scale / sqrt(variance + epsilon)`` is the same
operator with weights ``s·W`` and bias ``s·(b - mean) + B``.
"""

from __future__ import annotations

import numpy as np

from brisk.graph.attributes import number
from brisk.graph.draft import Draft, layer_of
from brisk.graph.passes.folding.weights import FOLDABLE, scale_and_shift
from brisk.graph.rewriting import Rewriter, plain


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
