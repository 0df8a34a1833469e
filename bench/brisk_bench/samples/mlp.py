"""A plain multi-layer perceptron with random weights."""

from __future__ import annotations

import itertools

import numpy as np
import onnx

from brisk_bench.samples.writer import GraphWriter

WIDTHS = (784, 1024, 1024, 10)


def build_mlp(name: str, seed: int) -> onnx.ModelProto:
    """Build Gemm and Relu through ``WIDTHS``, Softmax at the end."""
    random = np.random.default_rng(seed)
    graph = GraphWriter(name, opset=13)
    value = graph.input("features", "float32", ("batch", WIDTHS[0]))
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(WIDTHS)):
        weight = graph.weight(random.normal(0, np.sqrt(2 / inputs), (inputs, outputs)))
        value = graph.add("Gemm", value, weight, graph.weight(random.normal(0, 0.1, outputs)))
        if layer < len(WIDTHS) - 2:
            value = graph.add("Relu", value)
    value = graph.add("Softmax", value, axis=1)
    graph.output(value, "probabilities", "float32", ("batch", WIDTHS[-1]))
    return graph.model()
