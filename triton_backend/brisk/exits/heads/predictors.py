"""The architectures of predictors: fully connected, convolutional, pooling (GATI, section 7)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from brisk.errors import InvalidConfigurationError
from brisk.exits.heads.exit_model import Shape


@dataclass(frozen=True, slots=True)
class Variant:
    """An architecture (GATI, section 3.1, Table 3), named as the paper writes it.

    ``build(shape, classes, normalised=True)`` returns a fresh network from float32 [rows, *shape]
    to logits float32 [rows, classes]: to be trained if ``normalised``, else in the form of
    ``settled``. ``least_side`` is the least side of the images that it reads; 0: it reads hidden
    outputs of any shape.
    """

    name: str
    build: Callable[..., nn.Module]
    least_side: int = 0

    def applies(self, shape: Shape) -> bool:
        """Whether the variant can read hidden outputs of ``shape``."""
        return not self.least_side or (len(shape) == 3 and min(shape[1:]) >= self.least_side)


def settled(network: nn.Module) -> nn.Module:
    """Return the trained network in the form that is served: batch normalisation is folded into
    the convolutions."""
    network.eval()
    layers: list[nn.Module] = []
    for layer in network.children():
        if isinstance(layer, nn.BatchNorm2d):
            convolution = layers.pop()
            assert isinstance(convolution, nn.Conv2d)
            layer = fuse_conv_bn_eval(convolution, layer)
        layers.append(layer)
    return nn.Sequential(*layers).eval() if layers else network


def as_image(hidden: torch.Tensor) -> torch.Tensor:
    """Return [rows, positions, features] as [rows, features, positions, 1]; images as they are."""
    if hidden.dim() == 3:
        return hidden.transpose(1, 2).unsqueeze(3)
    return hidden


class AsImage(nn.Module):
    """``as_image`` as a layer."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return as_image(hidden)


def weights_bytes(network: nn.Module) -> int:
    """Return the memory of all parameters and buffers."""
    tensors = (*network.parameters(), *network.buffers())
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def fully_connected(units: int) -> Variant:
    """Return the variant of a fully connected hidden layer of so many ``units`` (ReLU)."""

    def build(shape: Shape, classes: int, normalised: bool = True) -> nn.Module:
        first = nn.Linear(math.prod(shape), units)
        return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(units, classes))

    return Variant(f"FC({units})", build)


CHANNELS, DEEP_CHANNELS = 32, 64
"""The channels of the first convolution's outputs (the paper's 0.8 to 2 MB for a cache leave room
for about as many), and of the second's and third's if there are three, whose maps are small."""

MOST_FEATURES = 2048
"""The most features in front of the last layer; larger maps are averaged down to that, since the
last layer would have most of the weights."""


def convolution(kernel: int, stride: int, depth: int = 1) -> Variant:
    """Return the variant of ``depth`` convolutions with ReLU, and a fully connected layer.

    The paper has one convolution. A second one costs a few microseconds and hits more at early
    layers, whose features are still local; with tens of thousands of rows a third one pays, too.
    """
    deeper = CHANNELS if depth == 2 else DEEP_CHANNELS
    channels = (CHANNELS, *(deeper for _ in range(depth - 1)))

    def build(shape: Shape, classes: int, normalised: bool = True) -> nn.Module:
        inputs, height, width = shape
        layers: list[nn.Module] = []
        for outputs in channels:
            layers.append(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2))
            if normalised:
                layers.append(nn.BatchNorm2d(outputs))
            layers.append(nn.ReLU())
            inputs = outputs
            height, width = (-(-side // stride) for side in (height, width))
        side = max(1, math.isqrt(MOST_FEATURES // inputs))
        if height * width > side * side:
            height, width = min(height, side), min(width, side)
            layers.append(nn.AdaptiveAvgPool2d((height, width)))
        features = inputs * height * width
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, classes))

    return Variant(f"Conv{depth if depth > 1 else ''}({kernel},{stride})", build, kernel)


def pooling(size: int) -> Variant:
    """Return the variant of averages over neighbourhoods, down to at most ``size`` numbers, and a
    fully connected layer."""

    def build(shape: Shape, classes: int, normalised: bool = True) -> nn.Module:
        if len(shape) == 1:
            return nn.Linear(shape[0], classes)
        channels = shape[0] if len(shape) == 3 else shape[1]
        sides = shape[1:] if len(shape) == 3 else (shape[0], 1)
        pooled = _pooled(channels, sides, size)
        layers: list[nn.Module] = [AsImage()] if len(shape) == 2 else []
        if pooled != sides:
            layers.append(nn.AdaptiveAvgPool2d(pooled))
        last = nn.Linear(channels * math.prod(pooled), classes)
        return nn.Sequential(*layers, nn.Flatten(), last)

    return Variant(f"Pool({size})", build)


def _pooled(channels: int, sides: tuple[int, ...], size: int) -> tuple[int, int]:
    """Return the sides after pooling, in the same proportion: channels x sides is at most size."""
    height, width = sides
    if channels * height * width <= size:
        return height, width
    if width == 1:
        return max(1, size // channels), 1
    share = math.sqrt(size / (channels * height * width))
    return max(1, int(height * share)), max(1, min(width, int(width * share)))


PAPER = (
    *(fully_connected(1024), fully_connected(512)),
    *(pooling(8192), pooling(4096)),
    *(convolution(3, 1), convolution(5, 2)),
)
"""The six variants of GATI's section 7."""

CATALOGUE = (*PAPER, convolution(3, 2, depth=2), convolution(3, 2, depth=3))


def variant(name: str) -> Variant:
    """Return the variant called ``name``. Raises InvalidConfigurationError if there is none."""
    for candidate in CATALOGUE:
        if candidate.name == name:
            return candidate
    known = ", ".join(candidate.name for candidate in CATALOGUE)
    raise InvalidConfigurationError(f"there is no cache variant '{name}'; there are {known}")
