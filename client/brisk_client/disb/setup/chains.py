"""Networks of equal layers that take as long as wanted (REEF, figure 13)."""

from __future__ import annotations

import math

import numpy as np
import onnx

from brisk_client.samples.writer import GraphWriter

PROBE_WIDTH = 640

LEAST_RUN_MS = 60.0
"""A chain has as many layers as give it this time, and two at least."""


def build_chain(width: int, layers: int) -> onnx.ModelProto:
    """``layers`` products of ``width`` x ``width`` matrices, each of ``2 width^3`` operations.

    Its input is one number, which is added to all of the first matrix: a request for it costs the
    server no more than one for a small network.
    """
    graph = GraphWriter("chain", opset=17)
    random = np.random.default_rng(0)
    number = graph.input("x", "float32", (1, 1))
    first = graph.weight(random.normal(0, 1, (width, width)))
    value = graph.add("Add", first, number)
    weight = graph.weight(random.normal(0, width**-0.5, (width, width)))
    for _ in range(layers):
        value = graph.add("Relu", graph.add("MatMul", value, weight))
    value = graph.add("ReduceMean", value, axes=[0, 1])
    graph.output(value, "y", "float32", (1, 1))
    return graph.model()


def chain_of(layer_ms: float, probe_layer_ms: float) -> onnx.ModelProto:
    """A chain whose layers take about ``layer_ms``, where PROBE_WIDTH takes ``probe_layer_ms``."""
    width = PROBE_WIDTH * (layer_ms / probe_layer_ms) ** (1 / 3)
    layers = max(2, math.ceil(LEAST_RUN_MS / layer_ms))
    return build_chain(max(16, round(width / 16) * 16), layers)
