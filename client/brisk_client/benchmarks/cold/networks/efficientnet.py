"""EfficientNet-B0 (Tan and Le, 2019, table 1): many small, depthwise, gated layers."""

from __future__ import annotations

import onnx

from brisk_client.benchmarks.cold.networks.layers import LayerWriter

_STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
"""Of each: expansion, kernel size, stride of the first block, channels, blocks."""

_STEM, _HEAD, _CLASSES = 32, 1280, 1000


def build_efficientnet(batch: int) -> onnx.ModelProto:
    """``image`` [batch, 3, 224, 224] to ``logits`` [batch, 1000]."""
    writer = LayerWriter("efficientnet_b0", seed=7)
    graph = writer.graph
    value = graph.input("image", "float32", (batch, 3, 224, 224))
    value = writer.swish(writer.normalised(value, 3, _STEM, 3, 2))
    channels = _STEM
    for expansion, size, stride, outputs, depth in _STAGES:
        for index in range(depth):
            step = stride if index == 0 else 1
            value = _block(writer, value, (channels, outputs), expansion, size, step)
            channels = outputs
    value = writer.swish(writer.normalised(value, channels, _HEAD, 1))
    value = writer.linear(writer.pooled(value), _HEAD, _CLASSES)
    graph.output(value, "logits", "float32", (batch, _CLASSES))
    return graph.model()


def _block(
    writer: LayerWriter,
    value: str,
    channels: tuple[int, int],
    expansion: int,
    size: int,
    stride: int,
) -> str:
    """An inverted bottleneck with squeeze and excitation; ``channels``: in and out."""
    inputs, outputs = channels
    width, shortcut = inputs * expansion, value
    if expansion != 1:
        value = writer.swish(writer.normalised(value, inputs, width, 1))
    value = writer.swish(writer.normalised(value, width, width, size, stride, groups=width))
    squeezed = max(1, inputs // 4)
    gate = writer.graph.add("GlobalAveragePool", value)
    gate = writer.swish(writer.convolution(gate, width, squeezed, 1))
    gate = writer.graph.add("Sigmoid", writer.convolution(gate, squeezed, width, 1, gain=1.0))
    value = writer.graph.add("Mul", value, gate)
    value = writer.normalised(value, width, outputs, 1, gain=1.0)
    if stride == 1 and inputs == outputs:
        value = writer.graph.add("Add", value, shortcut)
    return value
