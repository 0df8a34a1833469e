"""VGG-16 (Simonyan and Zisserman, 2015, configuration D).

The two hidden fully connected layers are 1024 wide instead of 4096: 42 million weights (166 MB)
instead of 138 million, which fit a benchmark's disk; the convolutions are VGG-16's own.
"""

from __future__ import annotations

import onnx

from brisk_client.benchmarks.cold.networks.layers import LayerWriter

_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
_HIDDEN, _CLASSES = 1024, 1000


def build_vgg(batch: int) -> onnx.ModelProto:
    """``image`` [batch, 3, 224, 224] to ``logits`` [batch, 1000]."""
    writer = LayerWriter("vgg16", seed=16)
    graph = writer.graph
    value, channels = graph.input("image", "float32", (batch, 3, 224, 224)), 3
    for width, depth in _STAGES:
        for _ in range(depth):
            value = writer.relu(writer.convolution(value, channels, width, 3))
            channels = width
        value = graph.add("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2])
    value = graph.add("Flatten", value, axis=1)
    value = writer.relu(writer.linear(value, channels * 49, _HIDDEN, gain=2.0))
    value = writer.relu(writer.linear(value, _HIDDEN, _HIDDEN, gain=2.0))
    graph.output(writer.linear(value, _HIDDEN, _CLASSES), "logits", "float32", (batch, _CLASSES))
    return graph.model()
