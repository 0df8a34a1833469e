"""The networks of `brisk bench cold`: built once, kept in a folder, for one image or text.

They have random weights of sane size and are as exporters write them. VGG-16 is configuration D of
Simonyan and Zisserman (2015), its two hidden fully connected layers 1024 wide instead of 4096: 42
million weights (166 MB) instead of 138 million, which fit a benchmark's disk. EfficientNet-B0 is
Tan and Le's (2019, table 1). U-Net (Ronneberger et al., 2015) has half its width, is padded, with
batch normalisation: width 32 to 512 instead of 64 to 1024 and 224 pixels instead of 572, so that
an inference takes a fraction of a second on two cores. ViT-S/16 (Dosovitskiy et al., 2021; width
and heads of Touvron et al., 2021) has LayerNormalization nodes, attention and GELU as the nodes
they consist of, as torch exports them at operator set 17.

These four take ``image`` [1, 3, 224, 224]; all but U-Net's mask are ``logits`` [1, 1000].
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from brisk_bench.engines.model_inputs import GivenInputs, make_inputs
from brisk_bench.samples.encoder import build_encoder
from brisk_bench.samples.mlp import build_mlp
from brisk_bench.samples.resnet import build_resnet
from brisk_bench.samples.writer import GraphWriter

TOKENS = 128
_CLASSES = 1000


class _Layers(GraphWriter):
    """Adds layers to a graph. Weights come from one generator, in the order of the calls."""

    def __init__(self, name: str, seed: int, side: int = 224) -> None:
        super().__init__(name, opset=17)
        self.random = np.random.default_rng(seed)
        self.image = self.input("image", "float32", (1, 3, side, side))

    def finished(self, value: str, name: str = "logits", *sizes: int) -> onnx.ModelProto:
        self.output(value, name, "float32", (1, *(sizes or (_CLASSES,))))
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
        *,
        normalised: bool = False,
    ) -> str:
        """Add a convolution with bias, padded to keep the size.

        ``gain``: 2 before a ReLU, 1 otherwise.
        ``normalised``: batch normalisation with statistics of its own follows.
        """
        deviation = float(np.sqrt(gain / (inputs // groups * size * size)))
        value = self.add(
            "Conv",
            value,
            self.normal(outputs, inputs // groups, size, size, deviation=deviation),
            self.normal(outputs, deviation=0.05),
            kernel_shape=[size, size],
            strides=[stride, stride],
            pads=[size // 2] * 4,
            group=groups,
        )
        if normalised:
            value = self.batch_normalised(value, outputs, self.random, spread=0.1, shift=0.05)
        return value

    def swish(self, value: str) -> str:
        """Add x times its sigmoid, the two nodes that torch's SiLU is exported as."""
        return self.add("Mul", value, self.add("Sigmoid", value))

    def halved(self, value: str) -> str:
        return self.add("MaxPool", value, kernel_shape=[2, 2], strides=[2, 2])

    def pooled(self, value: str) -> str:
        return self.add("Flatten", self.add("GlobalAveragePool", value), axis=1)

    def linear(self, value: str, inputs: int, outputs: int, gain: float = 1.0) -> str:
        weight = self.normal(outputs, inputs, deviation=float(np.sqrt(gain / inputs)))
        return self.add("Gemm", value, weight, self.normal(outputs, deviation=0.05), transB=1)


def build_vgg() -> onnx.ModelProto:
    graph = _Layers("vgg16", 16)
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


def build_unet() -> onnx.ModelProto:
    """Build U-Net, from ``image`` to ``mask`` [1, 2, 224, 224]."""
    graph = _Layers("unet", 31)

    def double(value: str, inputs: int, outputs: int) -> str:
        for channels in (inputs, outputs):
            value = graph.convolution(value, channels, outputs, 3, normalised=True)
            value = graph.add("Relu", value)
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
            graph.normal(channels, width, 2, 2, deviation=channels**-0.5),
            graph.normal(width, deviation=0.05),
            kernel_shape=[2, 2],
            strides=[2, 2],
        )
        value = double(graph.add("Concat", skip, value, axis=1), 2 * width, width)
        channels = width
    value = graph.convolution(value, channels, 2, 1, gain=1.0)
    return graph.finished(value, "mask", 2, 224, 224)


_STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
"""EfficientNet's stages: expansion, kernel size, stride of the first block, channels, blocks."""


def build_efficientnet() -> onnx.ModelProto:
    """Build EfficientNet-B0: many small, depthwise, gated layers."""
    graph = _Layers("efficientnet_b0", 7)

    def block(value: str, inputs: int, outputs: int, expansion: int, size: int, step: int) -> str:
        """Add an inverted bottleneck with squeeze and excitation."""
        width, shortcut = inputs * expansion, value
        if expansion != 1:
            value = graph.swish(graph.convolution(value, inputs, width, 1, normalised=True))
        value = graph.convolution(value, width, width, size, step, width, normalised=True)
        value = graph.swish(value)
        squeezed = max(1, inputs // 4)
        gate = graph.add("GlobalAveragePool", value)
        gate = graph.swish(graph.convolution(gate, width, squeezed, 1))
        gate = graph.add("Sigmoid", graph.convolution(gate, squeezed, width, 1, gain=1.0))
        value = graph.add("Mul", value, gate)
        value = graph.convolution(value, width, outputs, 1, gain=1.0, normalised=True)
        is_residual = step == 1 and inputs == outputs
        return graph.add("Add", value, shortcut) if is_residual else value

    value = graph.swish(graph.convolution(graph.image, 3, 32, 3, 2, normalised=True))
    channels = 32
    for expansion, size, stride, outputs, depth in _STAGES:
        for step in (stride, *[1] * (depth - 1)):
            value = block(value, channels, outputs, expansion, size, step)
            channels = outputs
    value = graph.swish(graph.convolution(value, channels, 1280, 1, normalised=True))
    return graph.finished(graph.linear(graph.pooled(value), 1280, _CLASSES))


_WIDTH, _HEADS, _BLOCKS, _INNER, _PATCHES = 384, 6, 12, 1536, 196
"""The sizes of the ViT."""


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
        shape = self.integers(1, _PATCHES + 1, _HEADS, _WIDTH // _HEADS)
        return self.add("Transpose", self.add("Reshape", value, shape), perm=order)

    def attention(self, value: str) -> str:
        query, key = self.heads(value, 0, 2, 1, 3), self.heads(value, 0, 2, 3, 1)
        content = self.heads(value, 0, 2, 1, 3)
        scores = self.add("MatMul", query, key)
        scores = self.add("Mul", scores, self.scalar((_WIDTH // _HEADS) ** -0.5))
        context = self.add("MatMul", self.add("Softmax", scores, axis=-1), content)
        context = self.add("Transpose", context, perm=[0, 2, 1, 3])
        context = self.add("Reshape", context, self.integers(1, _PATCHES + 1, _WIDTH))
        return self.projected(context, _WIDTH, _WIDTH)

    def tokens(self) -> str:
        """Add patches as tokens after the class token, with their places added."""
        weights = (
            self.normal(_WIDTH, 3, 16, 16, deviation=(3 * 256) ** -0.5),
            self.normal(_WIDTH, deviation=0.02),
        )
        value = self.add("Conv", self.image, *weights, kernel_shape=[16, 16], strides=[16, 16])
        value = self.add("Reshape", value, self.integers(1, _WIDTH, _PATCHES))
        value = self.add("Transpose", value, perm=[0, 2, 1])
        value = self.add("Concat", self.normal(1, 1, _WIDTH, deviation=0.02), value, axis=1)
        return self.add("Add", value, self.normal(1, _PATCHES + 1, _WIDTH, deviation=0.02))


def build_vit() -> onnx.ModelProto:
    graph = _Vit("vit_s16", 384)
    value = graph.tokens()
    for _ in range(_BLOCKS):
        value = graph.add("Add", value, graph.attention(graph.norm(value)))
        inner = graph.gelu(graph.projected(graph.norm(value), _WIDTH, _INNER))
        value = graph.add("Add", value, graph.projected(inner, _INNER, _WIDTH))
    value = graph.add("Gather", graph.norm(value), graph.weight(np.array(0)), axis=1)
    return graph.finished(graph.linear(value, _WIDTH, _CLASSES))


def write_unrelated(folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """Write a small network that has nothing to do with those that are measured into ``folder``;
    return its file and inputs for it."""
    graph = _Layers("unrelated", 7, side=32)
    value = graph.add("Relu", graph.convolution(graph.image, 3, 16, 3, normalised=True))
    value = graph.pooled(graph.convolution(graph.halved(value), 16, 32, 1))
    value = graph.add("MatMul", value, graph.normal(32, 64, deviation=0.2))
    value = graph.linear(graph.add("Sigmoid", value), 64, 16)
    model = graph.finished(graph.add("Softmax", value), "scores", 16)
    file = folder / "unrelated" / "1" / "model.onnx"
    file.parent.mkdir(parents=True)
    onnx.save(model, file)
    return file, {"image": graph.random.standard_normal((1, 3, 32, 32)).astype(np.float32)}


def _fixed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Set the model's symbolic sizes, the first to 1 and others to TOKENS; return the model."""
    for value in (*model.graph.input, *model.graph.output):
        for position, size in enumerate(value.type.tensor_type.shape.dim):
            if size.HasField("dim_param"):
                size.dim_value = TOKENS if position else 1
    return model


MODELS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "resnet50": lambda: _fixed(build_resnet("resnet50", (3, 4, 6, 3), 4, seed=50)),
    "vgg16": build_vgg,
    "efficientnet": build_efficientnet,
    "unet": build_unet,
    "encoder": lambda: _fixed(build_encoder("encoder", seed=6)),
    "vit": build_vit,
}

SMOKE = "mlp"
"""A network of three layers, for tests of the benchmark itself."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model and one request for it; ``folder`` takes what engines prepare."""

    name: str
    model: Path
    inputs: Path
    folder: Path


def build(name: str, folder: Path) -> ModelFiles:
    """Write a model of MODELS or SMOKE, and a request, into ``folder``/NAME, unless they exist."""
    place = folder / name
    files = ModelFiles(name, place / "1" / "model.onnx", place / "inputs.npz", place)
    files.model.parent.mkdir(parents=True, exist_ok=True)
    if not files.model.exists():
        model = _fixed(build_mlp("mlp", seed=3)) if name == SMOKE else MODELS[name]()
        draft = files.model.with_suffix(".part")
        draft.write_bytes(model.SerializeToString())
        os.replace(draft, files.model)
    if not files.inputs.exists():
        np.savez(files.inputs, **make_inputs(files.model))
    return files


def given_model(name: str, file: Path, folder: Path, given: GivenInputs) -> ModelFiles:
    """Return a user's model, which stays where it is, with inputs for it in a part of ``folder``.

    What engines prepare is kept there as long as the file is the same. Raises
    UnusableArgumentError.
    """
    state = file.stat()
    identity = f"{file.resolve()} {state.st_size} {state.st_mtime_ns}"
    place = folder / f"given-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"
    place.mkdir(parents=True, exist_ok=True)
    inputs = place / "inputs.npz"
    np.savez(inputs, **make_inputs(file, given))
    return ModelFiles(name, file.resolve(), inputs, place)
