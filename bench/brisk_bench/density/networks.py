"""Different small networks: perceptrons, convolutional networks and encoders, each one's structure
and size drawn from its number.

Weights are random, of a size that keeps activations near one. No two networks of a kind have the
same shape, so no session of one serves another.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

from brisk_bench.samples.writer import GraphWriter

CLASSES = 10
TOKENS, VOCABULARY, HEAD = 32, 2000, 32
"""Sizes of an encoder: length of a request, rows of its table, width of a head."""


def write_networks(folder: Path, count: int) -> list[Path]:
    """Write ``count`` files into ``folder``, of all kinds in turn, the same in every run."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for number in range(count):
        kind, build = KINDS[number % len(KINDS)]
        file = folder / f"{kind}_{number:03}.onnx"
        onnx.save(build(_Drawn(f"{kind}_{number:03}", number)), file)
        files.append(file)
    return files


class _Drawn(GraphWriter):
    """A graph whose sizes, activation and weights come from one generator.

    ``step``: how many networks of its kind precede it; this gives it a width of its own.
    """

    def __init__(self, name: str, number: int) -> None:
        super().__init__(name, opset=17)
        self.random = np.random.default_rng(number)
        self.step = number // len(KINDS)
        self._activation = self.random.choice(["Relu", "Sigmoid", "Tanh", "gelu"])

    def among(self, least: int, most: int) -> int:
        """Draw an integer from ``least`` to ``most``, both included."""
        return int(self.random.integers(least, most + 1))

    def normal(self, *shape: int, deviation: float) -> str:
        return self.weight(self.random.normal(0, deviation, shape))

    def active(self, value: str) -> str:
        if self._activation == "gelu":
            return self.gelu(value)
        return self.add(self._activation, value)

    def linear(self, value: str, inputs: int, outputs: int) -> str:
        """Add a linear layer over the last axis, with a bias."""
        product = self.add("MatMul", value, self.normal(inputs, outputs, deviation=inputs**-0.5))
        return self.add("Add", product, self.normal(outputs, deviation=0.05))

    def norm(self, value: str, width: int) -> str:
        scale = self.weight(self.random.uniform(0.9, 1.1, width))
        bias = self.normal(width, deviation=0.02)
        return self.add("LayerNormalization", value, scale, bias, axis=-1)

    def heads(self, value: str, width: int, *order: int) -> str:
        """Project [rows, TOKENS, width], split it into heads HEAD wide, and order the axes."""
        shape = self.integers(0, TOKENS, width // HEAD, HEAD)
        value = self.add("Reshape", self.linear(value, width, width), shape)
        return self.add("Transpose", value, perm=list(order))

    def finished(self, value: str, width: int) -> onnx.ModelProto:
        """End the graph with probabilities of CLASSES, computed from a value [rows, width]."""
        value = self.add("Softmax", self.linear(value, width, CLASSES), axis=-1)
        self.output(value, "probabilities", "float32", ("batch", CLASSES))
        return self.model()


def _perceptron(graph: _Drawn) -> onnx.ModelProto:
    width = 64 * graph.among(2, 12)
    value = graph.input("features", "float32", ("batch", width))
    for place in range(graph.among(1, 4)):
        outputs = 64 * graph.among(2, 12) + (0 if place else graph.step)
        value, width = graph.active(graph.linear(value, width, outputs)), outputs
    return graph.finished(value, width)


def _convolutional(graph: _Drawn) -> onnx.ModelProto:
    side, channels = 16 * graph.among(2, 4), 3
    value = graph.input("image", "float32", ("batch", channels, side, side))
    for place in range(graph.among(3, 7)):
        outputs = 8 * graph.among(2, 12) + (0 if place else graph.step)
        size, stride = 2 * graph.among(0, 2) + 1, graph.among(1, 2)
        deviation = (2 / (channels * size * size)) ** 0.5
        value = graph.add(
            "Conv",
            value,
            graph.normal(outputs, channels, size, size, deviation=deviation),
            kernel_shape=[size, size],
            strides=[stride, stride],
            pads=[size // 2] * 4,
        )
        value = graph.batch_normalised(value, outputs, graph.random, spread=0.1, shift=0.05)
        value, channels = graph.active(value), outputs
    value = graph.add("Flatten", graph.add("GlobalAveragePool", value), axis=1)
    return graph.finished(value, channels)


def _encoder(graph: _Drawn) -> onnx.ModelProto:
    width = HEAD * graph.among(2, 8)
    inner = width * graph.among(2, 4) + graph.step
    tokens = graph.input("input_ids", "int64", ("batch", TOKENS))
    value = graph.add("Gather", graph.normal(VOCABULARY, width, deviation=0.5), tokens)
    value = graph.add("Add", value, graph.normal(TOKENS, width, deviation=0.1))
    for _ in range(graph.among(1, 4)):
        normed = graph.norm(value, width)
        query, content = (graph.heads(normed, width, 0, 2, 1, 3) for _ in range(2))
        scores = graph.add("MatMul", query, graph.heads(normed, width, 0, 2, 3, 1))
        scores = graph.add("Softmax", graph.add("Mul", scores, graph.scalar(HEAD**-0.5)), axis=-1)
        context = graph.add("Transpose", graph.add("MatMul", scores, content), perm=[0, 2, 1, 3])
        context = graph.add("Reshape", context, graph.integers(0, TOKENS, width))
        value = graph.add("Add", value, graph.linear(context, width, width))
        hidden = graph.active(graph.linear(graph.norm(value, width), width, inner))
        value = graph.add("Add", value, graph.linear(hidden, inner, width))
    value = graph.add("ReduceMean", graph.norm(value, width), axes=[1], keepdims=0)
    return graph.finished(value, width)


KINDS: tuple[tuple[str, Callable[[_Drawn], onnx.ModelProto]], ...] = (
    ("perceptron", _perceptron),
    ("convolutional", _convolutional),
    ("encoder", _encoder),
)
"""Kinds of networks, with what builds each. Names of files begin with these."""
