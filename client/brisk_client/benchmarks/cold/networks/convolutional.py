"""VGG-16 (Simonyan and Zisserman, 2015, configuration D) and U-Net (Ronneberger et al., 2015).

VGG's two hidden fully connected layers are 1024 wide instead of 4096: 42 million weights (166 MB)
instead of 138 million, which fit a benchmark's disk; the convolutions are VGG-16's own.

U-Net has half its width, is padded, with batch normalisation: width 32 to 512 instead of 64 to
1024 and 224 pixels instead of 572, so that an inference takes a fraction of a second on two cores;
layers and their number are the paper's.
"""

from __future__ import annotations

import onnx

from brisk_client.benchmarks.cold.networks.layers import LayerWriter

_VGG_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
_VGG_HIDDEN, _VGG_CLASSES = 1024, 1000


def build_vgg(batch: int) -> onnx.ModelProto:
    """``image`` [batch, 3, 224, 224] to ``logits`` [batch, 1000]."""
    writer = LayerWriter("vgg16", seed=16)
    graph = writer.graph
    value, channels = graph.input("image", "float32", (batch, 3, 224, 224)), 3
    for width, depth in _VGG_STAGES:
        for _ in range(depth):
            value = writer.relu(writer.convolution(value, channels, width, 3))
            channels = width
        value = graph.add("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2])
    value = graph.add("Flatten", value, axis=1)
    value = writer.relu(writer.linear(value, channels * 49, _VGG_HIDDEN, gain=2.0))
    value = writer.relu(writer.linear(value, _VGG_HIDDEN, _VGG_HIDDEN, gain=2.0))
    graph.output(
        writer.linear(value, _VGG_HIDDEN, _VGG_CLASSES), "logits", "float32", (batch, _VGG_CLASSES)
    )
    return graph.model()


_UNET_WIDTHS = (32, 64, 128, 256, 512)
_UNET_CLASSES = 2
_UNET_SIDE = 224


def build_unet(batch: int) -> onnx.ModelProto:
    """``image`` [batch, 3, 224, 224] to ``mask`` [batch, 2, 224, 224]."""
    writer = LayerWriter("unet", seed=31)
    graph = writer.graph
    value, channels = graph.input("image", "float32", (batch, 3, _UNET_SIDE, _UNET_SIDE)), 3
    skipped: list[str] = []
    for width in _UNET_WIDTHS[:-1]:
        value = _double(writer, value, channels, width)
        skipped.append(value)
        value = graph.add("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2])
        channels = width
    value = _double(writer, value, channels, _UNET_WIDTHS[-1])
    channels = _UNET_WIDTHS[-1]
    for width, skip in zip(_UNET_WIDTHS[-2::-1], reversed(skipped), strict=True):
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
    value = writer.convolution(value, channels, _UNET_CLASSES, 1, gain=1.0)
    graph.output(value, "mask", "float32", (batch, _UNET_CLASSES, _UNET_SIDE, _UNET_SIDE))
    return graph.model()


def _double(writer: LayerWriter, value: str, inputs: int, outputs: int) -> str:
    value = writer.relu(writer.normalised(value, inputs, outputs, 3))
    return writer.relu(writer.normalised(value, outputs, outputs, 3))
