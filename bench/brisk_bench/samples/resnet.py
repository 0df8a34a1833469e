"""ResNet with random weights (He et al., 2015, table 1; the stride sits on the 3x3 convolution,
as torchvision does it)."""

from __future__ import annotations

import numpy as np
import onnx

from brisk_bench.samples.writer import GraphWriter

CLASSES = 1000
_STAGE_CHANNELS = (64, 128, 256, 512)
_RESIDUAL_SCALE = 0.2  # of the last normalisation in a block, so that activations stay near 1


class _Resnet(GraphWriter):
    def __init__(self, name: str, seed: int) -> None:
        super().__init__(name, opset=17)
        self.random = np.random.default_rng(seed)

    def convolution(
        self, value: str, inputs: int, outputs: int, size: int, stride: int, gain: float = 1.0
    ) -> str:
        """Add a convolution without bias, then batch normalisation with its own statistics."""
        deviation = np.sqrt(2.0 / (inputs * size * size))
        weight = self.random.normal(0, deviation, (outputs, inputs, size, size))
        value = self.add(
            "Conv",
            value,
            self.weight(weight, "conv"),
            kernel_shape=[size, size],
            strides=[stride, stride],
            pads=[size // 2] * 4,
        )
        return self.batch_normalised(value, outputs, self.random, spread=0.2, shift=0.1, gain=gain)

    def block(self, value: str, inputs: int, width: int, stride: int, expansion: int) -> str:
        """Add a basic block (``expansion`` 1) or a bottleneck (4), with its shortcut."""
        outputs = width * expansion
        shortcut = value
        if stride != 1 or inputs != outputs:
            shortcut = self.convolution(value, inputs, outputs, 1, stride)
        if expansion == 1:
            value = self.add("Relu", self.convolution(value, inputs, width, 3, stride))
            value = self.convolution(value, width, outputs, 3, 1, _RESIDUAL_SCALE)
        else:
            value = self.add("Relu", self.convolution(value, inputs, width, 1, 1))
            value = self.add("Relu", self.convolution(value, width, width, 3, stride))
            value = self.convolution(value, width, outputs, 1, 1, _RESIDUAL_SCALE)
        return self.add("Relu", self.add("Add", value, shortcut))


def build_resnet(name: str, depths: tuple[int, ...], expansion: int, seed: int) -> onnx.ModelProto:
    """Build ``depths`` blocks per stage; (3, 4, 6, 3) with ``expansion`` 4 is ResNet-50."""
    graph = _Resnet(name, seed)
    value = graph.input("image", "float32", ("batch", 3, 224, 224))
    value = graph.add("Relu", graph.convolution(value, 3, 64, 7, 2))
    value = graph.add("MaxPool", value, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for stage, (width, depth) in enumerate(zip(_STAGE_CHANNELS, depths, strict=True)):
        for index in range(depth):
            stride = 2 if stage > 0 and index == 0 else 1
            value = graph.block(value, channels, width, stride, expansion)
            channels = width * expansion
    value = graph.add("Flatten", graph.add("GlobalAveragePool", value), axis=1)
    weight = graph.random.normal(0, 1 / np.sqrt(channels), (CLASSES, channels))
    bias = graph.random.normal(0, 0.1, CLASSES)
    value = graph.add(
        "Gemm", value, graph.weight(weight, "fc"), graph.weight(bias, "fc"), transB=1
    )
    graph.output(value, "logits", "float32", ("batch", CLASSES))
    return graph.model()
