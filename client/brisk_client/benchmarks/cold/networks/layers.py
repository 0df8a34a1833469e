"""What the convolutional networks are made of, as an exporter in evaluation mode writes it."""

from __future__ import annotations

import numpy as np

from brisk_client.samples.writer import GraphWriter


class LayerWriter:
    """Adds layers to a graph. Weights come from one generator, in the order of the calls."""

    def __init__(self, name: str, seed: int, opset: int = 17) -> None:
        self.graph = GraphWriter(name, opset)
        self.random = np.random.default_rng(seed)

    def normal(self, *shape: int, deviation: float) -> str:
        array = self.random.standard_normal(shape, dtype=np.float32) * np.float32(deviation)
        return self.graph.weight(array)

    def convolution(
        self,
        value: str,
        inputs: int,
        outputs: int,
        size: int,
        stride: int = 1,
        groups: int = 1,
        gain: float = 2.0,
    ) -> str:
        """With bias, padded to keep the size. ``gain``: 2 before a ReLU, 1 before none."""
        deviation = float(np.sqrt(gain / (inputs // groups * size * size)))
        return self.graph.add(
            "Conv",
            value,
            self.normal(outputs, inputs // groups, size, size, deviation=deviation),
            self.normal(outputs, deviation=0.05),
            kernel_shape=[size, size],
            strides=[stride, stride],
            pads=[size // 2] * 4,
            group=groups,
        )

    def normalised(
        self,
        value: str,
        inputs: int,
        outputs: int,
        size: int,
        stride: int = 1,
        groups: int = 1,
        gain: float = 2.0,
    ) -> str:
        """Convolution, then batch normalisation with statistics of its own."""
        value = self.convolution(value, inputs, outputs, size, stride, groups, gain)
        statistics = [
            self.random.uniform(0.9, 1.1, outputs),
            self.random.normal(0, 0.05, outputs),
            self.random.normal(0, 0.05, outputs),
            self.random.uniform(0.9, 1.1, outputs),
        ]
        names = [self.graph.weight(array, "norm") for array in statistics]
        return self.graph.add("BatchNormalization", value, *names, epsilon=1e-5)

    def relu(self, value: str) -> str:
        return self.graph.add("Relu", value)

    def swish(self, value: str) -> str:
        """x times its sigmoid, the two nodes that torch's SiLU is exported as."""
        return self.graph.add("Mul", value, self.graph.add("Sigmoid", value))

    def linear(self, value: str, inputs: int, outputs: int, gain: float = 1.0) -> str:
        weight = self.normal(outputs, inputs, deviation=float(np.sqrt(gain / inputs)))
        return self.graph.add(
            "Gemm", value, weight, self.normal(outputs, deviation=0.05), transB=1
        )

    def pooled(self, value: str) -> str:
        """Global average pooling and flattening: [batch, channels]."""
        return self.graph.add("Flatten", self.graph.add("GlobalAveragePool", value), axis=1)
