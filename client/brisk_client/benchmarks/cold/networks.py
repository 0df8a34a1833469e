"""The networks of `brisk bench cold`, with random weights of sane size, as exporters write them.

VGG-16 is configuration D of Simonyan and Zisserman (2015), its two hidden fully connected layers
1024 wide instead of 4096: 42 million weights (166 MB) instead of 138 million, which fit a
benchmark's disk. EfficientNet-B0 is Tan and Le's (2019, table 1). U-Net (Ronneberger et al., 2015)
has half its width, is padded, with batch normalisation: width 32 to 512 instead of 64 to 1024 and
224 pixels instead of 572, so that an inference takes a fraction of a second on two cores. ViT-S/16
(Dosovitskiy et al., 2021; width and heads of Touvron et al., 2021) has LayerNormalization nodes,
attention and GELU as the nodes they consist of, as torch exports them at operator set 17.

All take ``image`` [batch, 3, 224, 224]; all but U-Net's mask are ``logits`` [batch, 1000].
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from brisk_client.samples.writer import GraphWriter

_SIDE, _CLASSES = 224, 1000


class _Layers(GraphWriter):
    """Adds layers to a graph. Weights come from one generator, in the order of the calls."""

    def __init__(self, name: str, seed: int, batch: int) -> None:
        super().__init__(name, opset=17)
        self.random = np.random.default_rng(seed)
        self.batch = batch
        self.image = self.input("image", "float32", (batch, 3, _SIDE, _SIDE))

    def finished(self, value: str, name: str = "logits", *sizes: int) -> onnx.ModelProto:
        self.output(value, name, "float32", (self.batch, *(sizes or (_CLASSES,))))
        return self.model()

    def normal(self, *shape: int, deviation: float) -> str:
        array = self.random.standard_normal(shape, dtype=np.float32) * np.float32(deviation)
        return self.weight(array)

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
        return self.add(
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
        return self.batch_normalised(value, outputs, self.random, spread=0.1, shift=0.05)

    def swish(self, value: str) -> str:
        """x times its sigmoid, the two nodes that torch's SiLU is exported as."""
        return self.add("Mul", value, self.add("Sigmoid", value))

    def halved(self, value: str) -> str:
        return self.add("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2])

    def linear(self, value: str, inputs: int, outputs: int, gain: float = 1.0) -> str:
        weight = self.normal(outputs, inputs, deviation=float(np.sqrt(gain / inputs)))
        return self.add("Gemm", value, weight, self.normal(outputs, deviation=0.05), transB=1)


def build_vgg(batch: int) -> onnx.ModelProto:
    graph = _Layers("vgg16", 16, batch)
    value, channels = graph.image, 3
    for width, depth in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(depth):
            value = graph.add("Relu", graph.convolution(value, channels, width, 3))
            channels = width
        value = graph.halved(value)
    value, channels = graph.add("Flatten", value, axis=1), channels * 49
    for _ in range(2):
        value = graph.add("Relu", graph.linear(value, channels, 1024, gain=2.0))
        channels = 1024
    return graph.finished(graph.linear(value, channels, _CLASSES))


def build_unet(batch: int) -> onnx.ModelProto:
    """To ``mask`` [batch, 2, 224, 224]."""
    graph = _Layers("unet", 31, batch)

    def double(value: str, inputs: int, outputs: int) -> str:
        for channels in (inputs, outputs):
            value = graph.add("Relu", graph.normalised(value, channels, outputs, 3))
        return value

    value, channels = graph.image, 3
    skipped: list[tuple[int, str]] = []
    for width in (32, 64, 128, 256):
        value = double(value, channels, width)
        skipped.append((width, value))
        value, channels = graph.halved(value), width
    value, channels = double(value, channels, 512), 512
    for width, skip in reversed(skipped):
        value = graph.add(
            "ConvTranspose",
            value,
            graph.normal(channels, width, 2, 2, deviation=float((1.0 / channels) ** 0.5)),
            graph.normal(width, deviation=0.05),
            kernel_shape=[2, 2],
            strides=[2, 2],
        )
        value = double(graph.add("Concat", skip, value, axis=1), 2 * width, width)
        channels = width
    value = graph.convolution(value, channels, 2, 1, gain=1.0)
    return graph.finished(value, "mask", 2, _SIDE, _SIDE)


_STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
"""EfficientNet's. Of each: expansion, kernel size, stride of the first block, channels, blocks."""


def build_efficientnet(batch: int) -> onnx.ModelProto:
    """Many small, depthwise, gated layers."""
    graph = _Layers("efficientnet_b0", 7, batch)

    def block(value: str, inputs: int, outputs: int, expansion: int, size: int, step: int) -> str:
        """An inverted bottleneck with squeeze and excitation."""
        width, shortcut = inputs * expansion, value
        if expansion != 1:
            value = graph.swish(graph.normalised(value, inputs, width, 1))
        value = graph.swish(graph.normalised(value, width, width, size, step, groups=width))
        squeezed = max(1, inputs // 4)
        gate = graph.add("GlobalAveragePool", value)
        gate = graph.swish(graph.convolution(gate, width, squeezed, 1))
        gate = graph.add("Sigmoid", graph.convolution(gate, squeezed, width, 1, gain=1.0))
        value = graph.add("Mul", value, gate)
        value = graph.normalised(value, width, outputs, 1, gain=1.0)
        is_residual = step == 1 and inputs == outputs
        return graph.add("Add", value, shortcut) if is_residual else value

    value = graph.swish(graph.normalised(graph.image, 3, 32, 3, 2))
    channels = 32
    for expansion, size, stride, outputs, depth in _STAGES:
        for step in (stride, *[1] * (depth - 1)):
            value = block(value, channels, outputs, expansion, size, step)
            channels = outputs
    value = graph.swish(graph.normalised(value, channels, 1280, 1))
    value = graph.add("Flatten", graph.add("GlobalAveragePool", value), axis=1)
    return graph.finished(graph.linear(value, 1280, _CLASSES))


_WIDTH, _HEADS, _BLOCKS, _INNER, _PATCHES = 384, 6, 12, 1536, 196
"""ViT's."""


class _Vit(_Layers):
    def norm(self, value: str) -> str:
        scale = self.weight(self.random.uniform(0.9, 1.1, _WIDTH))
        bias = self.normal(_WIDTH, deviation=0.02)
        return self.add("LayerNormalization", value, scale, bias, axis=-1, epsilon=1e-6)

    def projected(self, value: str, inputs: int, outputs: int) -> str:
        product = self.add("MatMul", value, self.normal(inputs, outputs, deviation=inputs**-0.5))
        return self.add("Add", self.normal(outputs, deviation=0.02), product)

    def heads(self, value: str, *order: int) -> str:
        value = self.projected(value, _WIDTH, _WIDTH)
        shape = self.integers(self.batch, _PATCHES + 1, _HEADS, _WIDTH // _HEADS)
        return self.add("Transpose", self.add("Reshape", value, shape), perm=order)

    def attention(self, value: str) -> str:
        query, key = self.heads(value, 0, 2, 1, 3), self.heads(value, 0, 2, 3, 1)
        content = self.heads(value, 0, 2, 1, 3)
        scores = self.add("MatMul", query, key)
        scores = self.add("Mul", scores, self.scalar((_WIDTH // _HEADS) ** -0.5))
        context = self.add("MatMul", self.add("Softmax", scores, axis=-1), content)
        context = self.add("Transpose", context, perm=[0, 2, 1, 3])
        shape = self.integers(self.batch, _PATCHES + 1, _WIDTH)
        return self.projected(self.add("Reshape", context, shape), _WIDTH, _WIDTH)

    def tokens(self) -> str:
        """Patches as tokens behind the class token, with their places added."""
        weights = (
            self.normal(_WIDTH, 3, 16, 16, deviation=(3 * 256) ** -0.5),
            self.normal(_WIDTH, deviation=0.02),
        )
        value = self.add("Conv", self.image, *weights, kernel_shape=[16, 16], strides=[16, 16])
        value = self.add("Reshape", value, self.integers(self.batch, _WIDTH, _PATCHES))
        value = self.add("Transpose", value, perm=[0, 2, 1])
        first = self.random.normal(0, 0.02, (1, 1, _WIDTH))
        head = self.weight(np.repeat(first, self.batch, axis=0))
        value = self.add("Concat", head, value, axis=1)
        return self.add("Add", value, self.normal(1, _PATCHES + 1, _WIDTH, deviation=0.02))


def build_vit(batch: int) -> onnx.ModelProto:
    graph = _Vit("vit_s16", 384, batch)
    value = graph.tokens()
    for _ in range(_BLOCKS):
        value = graph.add("Add", value, graph.attention(graph.norm(value)))
        inner = graph.gelu(graph.projected(graph.norm(value), _WIDTH, _INNER))
        value = graph.add("Add", value, graph.projected(inner, _INNER, _WIDTH))
    value = graph.add("Gather", graph.norm(value), graph.weight(np.array(0)), axis=1)
    return graph.finished(graph.linear(value, _WIDTH, _CLASSES))


def write_unrelated(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """A small network that has nothing to do with those that are measured: its file in
    ``folder``, and inputs for it.

    Each engine starts it once, in the process of the sample and by the means that are measured,
    so that no engine's first start of all is compared with another's second.
    """
    random = np.random.default_rng(7)
    shapes = {
        "stem": (16, 3, 3, 3),
        **dict.fromkeys(("scale", "shift", "mean", "spread"), (16,)),
        "mix": (32, 16, 1, 1),
        "wide": (32, 64),
        "out": (64, 16),
    }
    weights = [
        numpy_helper.from_array(np.abs(random.standard_normal(shape)).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "stem"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["a", "scale", "shift", "mean", "spread"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("MaxPool", ["c"], ["d"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["d", "mix"], ["e"]),
        helper.make_node("GlobalAveragePool", ["e"], ["f"]),
        helper.make_node("Flatten", ["f"], ["g"]),
        helper.make_node("MatMul", ["g", "wide"], ["h"]),
        helper.make_node("Sigmoid", ["h"], ["i"]),
        helper.make_node("Gemm", ["i", "out"], ["j"]),
        helper.make_node("Softmax", ["j"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "unrelated",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 32, 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16])],
        weights,
    )
    opsets = [helper.make_opsetid("", 17)]
    file = folder / "unrelated.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), file)
    return file, {"x": random.standard_normal((1, 3, 32, 32)).astype(np.float32)}
