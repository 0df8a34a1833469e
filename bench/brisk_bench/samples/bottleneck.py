"""ResNet-50 for small grey images, really trained: 53 convolutions in bottleneck blocks.

The blocks are those of He et al., 2015, table 1 (3, 4, 6, 3); the stem is one 3x3 convolution of
stride 2, as is usual for images this small.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import onnx
import torch
from torch import nn
from torch.nn import functional

from brisk_bench.samples.torch_layers import write_layer
from brisk_bench.samples.writer import GraphWriter

BLOCKS = (3, 4, 6, 3)
EXPANSION = 4
CLASSES = 10
_SEED = 1
_MOMENTUM, _DECAY = 0.9, 5e-4
_SHIFT = 2  # pixels that an image is moved at most while training


@dataclass(frozen=True, slots=True)
class BottleneckRecipe:
    """The size and training of a network.

    ``width``: channels of the stem, 64 in the original.
    ``mirrored``: half of the batches are mirrored while training.
    ``blocks``: of each stage.
    """

    width: int
    epochs: int
    learning_rate: float = 0.1
    batch_rows: int = 128
    mirrored: bool = False
    blocks: tuple[int, ...] = BLOCKS


class Bottleneck(nn.Module):
    """1x1, 3x3 with the stride, 1x1, and the shortcut; the last normalisation begins at zero."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = EXPANSION * width
        self.path = nn.Sequential(
            *_convolution(inputs, width, 1, 1),
            nn.ReLU(),
            *_convolution(width, width, 3, stride),
            nn.ReLU(),
            *_convolution(width, outputs, 1, 1),
        )
        changes = stride > 1 or inputs != outputs
        self.shortcut = nn.Sequential(*_convolution(inputs, outputs, 1, stride)[: 2 * changes])
        nn.init.zeros_(self.path[-1].weight)  # type: ignore[arg-type]  # a Module's attribute

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.path(value) + self.shortcut(value))


def _convolution(inputs: int, outputs: int, size: int, stride: int) -> list[nn.Module]:
    layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    return [layer, nn.BatchNorm2d(outputs)]


def build_bottleneck(recipe: BottleneckRecipe) -> nn.Sequential:
    """Return the untrained network, for images [rows, 1, height, width] of values 0..1."""
    layers: list[nn.Module] = [*_convolution(1, recipe.width, 3, 2), nn.ReLU()]
    inputs = recipe.width
    for stage, blocks in enumerate(recipe.blocks):
        width = recipe.width * 2**stage
        for block in range(blocks):
            layers.append(Bottleneck(inputs, width, 2 if stage and not block else 1))
            inputs = EXPANSION * width
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, CLASSES)
    )


def train_bottleneck(
    name: str, recipe: BottleneckRecipe, images: np.ndarray, labels: np.ndarray
) -> onnx.ModelProto:
    """Train on ``images`` float32 [rows, 1, height, width] of 0..1, ``labels`` int64 [rows].

    Computes in bfloat16 if that is faster, so weights differ from machine to machine.
    """
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
        torch.manual_seed(_SEED)
        network = build_bottleneck(recipe)
        _train(network, recipe, torch.from_numpy(images), torch.from_numpy(labels))
    graph = GraphWriter(name, opset=18)
    value = graph.input("image", "float32", ("batch", *images.shape[1:]))
    for layer in network.eval():
        if isinstance(layer, Bottleneck):
            shortcut = write_layer(graph, layer.shortcut, value)
            path = write_layer(graph, layer.path, value)
            value = graph.add("Relu", graph.add("Add", path, shortcut))
        else:
            value = write_layer(graph, layer, value)
    graph.output(value, "logits", "float32", ("batch", CLASSES))
    return graph.model()


def _train(
    network: nn.Sequential, recipe: BottleneckRecipe, images: torch.Tensor, labels: torch.Tensor
) -> None:
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    batches = max(1, len(images) // recipe.batch_rows)
    optimizer = torch.optim.SGD(
        network.parameters(), 0.1, _MOMENTUM, weight_decay=_DECAY, nesterov=True
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, recipe.learning_rate, total_steps=batches * recipe.epochs
    )
    for _ in range(recipe.epochs):
        for chosen in torch.randperm(len(images)).tensor_split(batches):
            batch = _moved(images[chosen], recipe)
            with torch.autocast("cpu", torch.bfloat16, enabled=torch.cpu._is_amx_tile_supported()):
                scores = network(batch)
            loss = functional.cross_entropy(scores.float(), labels[chosen])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch
            optimizer.step()
            schedule.step()


def _moved(images: torch.Tensor, recipe: BottleneckRecipe) -> torch.Tensor:
    """Shift the batch, and perhaps mirror it, as a whole: no loss if batches are many."""
    down, right = torch.randint(-_SHIFT, _SHIFT + 1, (2,)).tolist()
    moved = torch.roll(images, (down, right), (2, 3))
    if recipe.mirrored and torch.rand(()) < 0.5:
        moved = moved.flip(3)
    return moved.contiguous(memory_format=torch.channels_last)
