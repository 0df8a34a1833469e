"""Five networks that stand for the paper's five (REEF, table 1): same layer counts, same relative
costs, random weights.

Not the published architectures: a layer there is a kernel of TVM's, here an operator with the
element-wise ones behind it, so the depths are chosen to give table 1's counts, and the widths to
give its relative execution times on a CPU with two threads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx

from brisk_bench.samples.writer import GraphWriter

CLASSES = 100


@dataclass(frozen=True, slots=True)
class Network:
    """A network and its figures in the paper.

    ``layers``, ``paper_ms``: of table 1.
    ``build``: makes the model; its input is ``x``.
    """

    layers: int
    paper_ms: float
    build: Callable[[], onnx.ModelProto]


class _NetworkWriter(GraphWriter):
    """Writes convolutional layers, one call for each."""

    def __init__(self, name: str, side: int) -> None:
        super().__init__(name, opset=17)
        self.random = np.random.default_rng(0)
        self.value = self.input("x", "float32", (1, 3, side, side))

    def weights(self, *shape: int) -> str:
        """Add weights of a scale that keeps activations' size through layers (He et al., 2015)."""
        fan_in = int(np.prod(shape[1:]))
        return self.weight(self.random.normal(0, np.sqrt(2.0 / fan_in), shape))

    def affine(self, value: str, channels: int) -> str:
        """Add batch normalisation that no convolution can absorb, with Relu."""
        ones, zeros = np.ones(channels), np.zeros(channels)
        names = [self.weight(array) for array in (ones, zeros, zeros, ones)]
        return self.relu(self.add("BatchNormalization", value, *names))

    def convolution(
        self, value: str, inputs: int, outputs: int, size: int = 3, *, stride: int = 1
    ) -> str:
        return self.add(
            "Conv",
            value,
            self.weights(outputs, inputs, size, size),
            self.weight(np.zeros(outputs)),
            kernel_shape=[size, size],
            strides=[stride, stride],
            pads=[size // 2] * 4,
        )

    def relu(self, value: str) -> str:
        return self.add("Relu", value)

    def pool(self, value: str, *, stride: int = 2) -> str:
        return self.add("MaxPool", value, kernel_shape=[3, 3], strides=[stride] * 2, pads=[1] * 4)

    def classify(self, value: str, channels: int) -> onnx.ModelProto:
        """Add a global average and one fully connected layer; return the finished model."""
        pooled = self.add("Flatten", self.add("GlobalAveragePool", value), axis=1)
        weight, bias = self.weights(CLASSES, channels), self.weight(np.zeros(CLASSES))
        self.output(self.add("Gemm", pooled, weight, bias, transB=1), "y", "float32", (1, CLASSES))
        return self.model()


def _resnet(width: int = 32, depths: tuple[int, ...] = (6, 16, 72, 6)) -> onnx.ModelProto:
    """Build bottleneck blocks (He et al., 2015), 100 of them where ResNet-152 has 50."""
    net = _NetworkWriter("resnet", 96)
    value = net.pool(net.relu(net.convolution(net.value, 3, width, 7, stride=2)))
    inputs = width
    for stage, depth in enumerate(depths):
        inner, outputs = width * 2**stage, width * 4 * 2**stage
        for index in range(depth):
            stride = 2 if stage and not index else 1
            shortcut = value
            if not index:
                shortcut = net.convolution(value, inputs, outputs, 1, stride=stride)
            value = net.relu(net.convolution(value, inputs, inner, 1))
            value = net.relu(net.convolution(value, inner, inner, 3, stride=stride))
            value = net.convolution(value, inner, outputs, 1)
            value = net.add("Mul", value, net.scalar(0.2))
            value = net.relu(net.add("Add", value, shortcut))
            inputs = outputs
    return net.classify(value, inputs)


def build_densenet(growth: int = 32, depths: tuple[int, ...] = (2, 5, 19, 12)) -> onnx.ModelProto:
    """Build dense blocks (Huang et al., 2016): every layer's output is joined to its input."""
    net = _NetworkWriter("densenet", 104)
    channels = 2 * growth
    value = net.pool(net.relu(net.convolution(net.value, 3, channels, 7, stride=2)))
    for stage, depth in enumerate(depths):
        if stage:
            value = net.convolution(net.affine(value, channels), channels, channels // 2, 1)
            channels //= 2
            value = net.add("AveragePool", value, kernel_shape=[2, 2], strides=[2, 2])
        for _ in range(depth):
            inner = net.relu(net.convolution(net.affine(value, channels), channels, 4 * growth, 1))
            new = net.convolution(inner, 4 * growth, growth, 3)
            value = net.add("Concat", value, new, axis=1)
            channels += growth
    return net.classify(net.affine(value, channels), channels)


def _vgg(width: int = 24, depths: tuple[int, ...] = (9, 9, 9, 9, 9)) -> onnx.ModelProto:
    """Build plain convolutions (Simonyan and Zisserman, 2014), 45 of them where VGG-19 has 16."""
    net = _NetworkWriter("vgg", 64)
    value, inputs = net.value, 3
    for stage, depth in enumerate(depths):
        outputs = width * min(8, 2**stage)
        for _ in range(depth):
            value = net.relu(net.convolution(value, inputs, outputs))
            inputs = outputs
        value = net.pool(value)
    return net.classify(value, inputs)


def _inception(width: int = 112, blocks: int = 15) -> onnx.ModelProto:
    """Build blocks of four branches (Szegedy et al., 2015, figure 5), joined."""
    net = _NetworkWriter("inception", 64)
    value = net.relu(net.convolution(net.value, 3, width, 3, stride=2))
    value = net.pool(net.relu(net.convolution(value, width, 4 * width, 3)))
    channels = 4 * width
    for index in range(blocks):
        if index in (blocks // 3, 2 * blocks // 3):
            value = net.pool(value)
        part = channels // 4
        one = net.relu(net.convolution(value, channels, part, 1))
        three = net.relu(net.convolution(value, channels, part, 1))
        three = net.relu(net.convolution(three, part, part, 3))
        five = net.relu(net.convolution(value, channels, part, 1))
        five = net.relu(net.convolution(five, part, part, 3))
        five = net.relu(net.convolution(five, part, part, 3))
        pooled = net.relu(net.convolution(net.pool(value, stride=1), channels, part, 1))
        value = net.add("Concat", one, three, five, pooled, axis=1)
    return net.classify(value, channels)


def build_bert(width: int = 180, blocks: int = 34, tokens: int = 64) -> onnx.ModelProto:
    """Build transformer blocks (Vaswani et al., 2017) on given embeddings, of six layers each."""
    graph = GraphWriter("bert", opset=17)
    random = np.random.default_rng(0)
    heads = 4

    def linear(value: str, inputs: int, outputs: int) -> str:
        weight = graph.weight(random.normal(0, inputs**-0.5, (inputs, outputs)))
        return graph.add(
            "Add", graph.add("MatMul", value, weight), graph.weight(np.zeros(outputs))
        )

    def normalise(value: str) -> str:
        scale, shift = graph.weight(np.ones(width)), graph.weight(np.zeros(width))
        return graph.add("LayerNormalization", value, scale, shift, axis=-1)

    def split(value: str, order: list[int]) -> str:
        shape = graph.integers(1, tokens, heads, width // heads)
        return graph.add("Transpose", graph.add("Reshape", value, shape), perm=order)

    value = graph.input("x", "float32", (1, tokens, width))
    for _ in range(blocks):
        query = split(linear(value, width, width), [0, 2, 1, 3])
        key = split(linear(value, width, width), [0, 2, 3, 1])
        values = split(linear(value, width, width), [0, 2, 1, 3])
        scores = graph.add("MatMul", query, key)
        scores = graph.add("Div", scores, graph.scalar((width // heads) ** 0.5))
        mixed = graph.add("MatMul", graph.add("Softmax", scores, axis=-1), values)
        mixed = graph.add("Transpose", mixed, perm=[0, 2, 1, 3])
        mixed = graph.add("Reshape", mixed, graph.integers(1, tokens, width))
        value = normalise(graph.add("Add", linear(mixed, width, width), value))
        inner = graph.add("Relu", linear(value, width, 4 * width))
        value = normalise(graph.add("Add", linear(inner, 4 * width, width), value))
    graph.output(value, "y", "float32", (1, tokens, width))
    return graph.model()


NETWORKS: Mapping[str, Network] = {
    "resnet": Network(307, 13.6, _resnet),
    "densenet": Network(207, 3.5, build_densenet),
    "vgg": Network(55, 4.4, _vgg),
    "inception": Network(146, 8.3, _inception),
    "bert": Network(205, 5.4, build_bert),
}
"""The networks by name. The scan of table 1 has lost the decimal points of DenseNet and VGG. VGG:
4.4 ms as by the text ("about 4 ms", 220 requests a second saturate the device). DenseNet: 3.5 ms,
since with 35 ms it would take 70 % of workload D by itself, which REEF serves with all five."""


# Networks of equal layers that take as long as wanted (REEF, figure 13).

PROBE_WIDTH = 640

LEAST_RUN_MS = 60.0
"""The least time of a chain: it has as many layers as that takes, and at least two."""


def build_chain(width: int, layers: int) -> onnx.ModelProto:
    """Build ``layers`` products of ``width`` x ``width`` matrices, ``2 width^3`` operations each.

    The input is one number, which is added to all of the first matrix: a request for it costs the
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
    """Build a chain of layers of about ``layer_ms``, if PROBE_WIDTH takes ``probe_layer_ms``."""
    width = PROBE_WIDTH * (layer_ms / probe_layer_ms) ** (1 / 3)
    layers = max(2, math.ceil(LEAST_RUN_MS / layer_ms))
    return build_chain(max(16, round(width / 16) * 16), layers)
