"""U-Net (Ronneberger et al., 2015) at half its width, padded, with batch normalisation.

Width 32 to 512 instead of 64 to 1024 and 224 pixels instead of 572, so that an inference takes
a fraction of a second on two cores; layers and their number are the paper's.
"""

from __future__ import annotations

import onnx

from brisk_client.benchmarks.cold.networks.layers import LayerWriter

_WIDTHS = (32, 64, 128, 256, 512)
_CLASSES = 2
_SIDE = 224


def build_unet(batch: int) -> onnx.ModelProto:
    """``image`` [batch, 3, 224, 224] to ``mask`` [batch, 2, 224, 224]."""
    writer = LayerWriter("unet", seed=31)
    graph = writer.graph
    value, channels = graph.input("image", "float32", (batch, 3, _SIDE, _SIDE)), 3
    skipped: list[str] = []
    for width in _WIDTHS[:-1]:
        value = _double(writer, value, channels, width)
        skipped.append(value)
        value = graph.add("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2])
        channels = width
    value = _double(writer, value, channels, _WIDTHS[-1])
    channels = _WIDTHS[-1]
    for width, skip in zip(_WIDTHS[-2::-1], reversed(skipped), strict=True):
        deviation = float((1.0 / channels) ** 0.5)
        value = graph.add(
            "ConvTranspose",
            value,
            writer.normal(channels, width, 2, 2, deviation=deviation),
            writer.normal(width, deviation=0.05),
            kernel_shape=[2, 2],
            strides=[2, 2],
        )
        value = graph.add("Concat", skip, value, axis=1)
        value = _double(writer, value, 2 * width, width)
        channels = width
    value = writer.convolution(value, channels, _CLASSES, 1, gain=1.0)
    graph.output(value, "mask", "float32", (batch, _CLASSES, _SIDE, _SIDE))
    return graph.model()


def _double(writer: LayerWriter, value: str, inputs: int, outputs: int) -> str:
    value = writer.relu(writer.normalised(value, inputs, outputs, 3))
    return writer.relu(writer.normalised(value, outputs, outputs, 3))
