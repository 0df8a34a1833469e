"""What a cache variant is: an architecture for predictor networks (GATI, section 3.1, Table 3)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from brisk.errors import InvalidConfigurationError
from brisk.exits.heads.lookup_model import Shape


class Variant(ABC):
    """Builds predictors: float32 [rows, *shape] to logits float32 [rows, classes]."""

    name: str
    """As the paper writes it, ``Pool(8192)``; unique in the catalogue."""

    @abstractmethod
    def applies(self, shape: Shape) -> bool:
        """Whether it can read hidden outputs of ``shape``."""

    @abstractmethod
    def build(self, shape: Shape, classes: int) -> nn.Module:
        """A fresh network to train. Precondition: it applies."""

    def settle(self, network: nn.Module) -> nn.Module:
        """The trained network in the form that is served, the same function in fewer steps."""
        return network.eval()

    @abstractmethod
    def build_settled(self, shape: Shape, classes: int) -> nn.Module:
        """An untrained network of the form that ``settle`` gives, to load weights into."""


def as_image(hidden: torch.Tensor) -> torch.Tensor:
    """[rows, positions, features] as [rows, features, positions, 1]; images as they are."""
    if hidden.dim() == 3:
        return hidden.transpose(1, 2).unsqueeze(3)
    return hidden


class AsImage(nn.Module):
    """``as_image`` as a layer."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return as_image(hidden)


def weights_bytes(network: nn.Module) -> int:
    """Memory of all parameters and buffers."""
    tensors = (*network.parameters(), *network.buffers())
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


# FC(h): the whole hidden output through one hidden layer of h units.


class FullyConnected(Variant):
    """Input, FC, hidden layer (ReLU), FC, output."""

    def __init__(self, units: int) -> None:
        self.name = f"FC({units})"
        self._units = units

    def applies(self, shape: Shape) -> bool:
        return True

    def build(self, shape: Shape, classes: int) -> nn.Module:
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(math.prod(shape), self._units),
            nn.ReLU(),
            nn.Linear(self._units, classes),
        )

    build_settled = build


# Conv(k, s): one convolution over the hidden output; Conv2 and Conv3(k, s): so many of them.

CHANNELS, DEEP_CHANNELS = 32, 64
"""Of the first convolutions' outputs (the paper's 0.8 to 2 MB for a cache leave room for about as
many), and of a third's, whose map is small, and the second's in front of it."""

MOST_FEATURES = 2048
"""In front of the last layer: larger maps are averaged down to that, else it has most weights."""


class Convolution(Variant):
    """Input, ``depth`` convolutions with ReLU, hidden layer, FC, output.

    The paper has one convolution. A second one costs a few microseconds and hits more at early
    layers, whose features are local still; with tens of thousands of rows a third one pays, too
    (ResNet-56 behind its half, 54,000 rows: right in 70, 74 and 76 % for Pool, two and three).
    """

    def __init__(self, kernel: int, stride: int, depth: int = 1) -> None:
        self.name = f"Conv{depth if depth > 1 else ''}({kernel},{stride})"
        self._kernel = kernel
        self._stride = stride
        deeper = CHANNELS if depth == 2 else DEEP_CHANNELS
        self._channels = (CHANNELS, *(deeper for _ in range(depth - 1)))

    def applies(self, shape: Shape) -> bool:
        return len(shape) == 3 and min(shape[1:]) >= self._kernel

    def build(self, shape: Shape, classes: int) -> nn.Module:
        return self._assemble(shape, classes, normalised=True)

    def build_settled(self, shape: Shape, classes: int) -> nn.Module:
        return self._assemble(shape, classes, normalised=False)

    def settle(self, network: nn.Module) -> nn.Module:
        """Batch normalisation folded into the convolutions."""
        network.eval()
        layers: list[nn.Module] = []
        for layer in network.children():
            if isinstance(layer, nn.BatchNorm2d):
                convolution = layers.pop()
                assert isinstance(convolution, nn.Conv2d)
                layers.append(fuse_conv_bn_eval(convolution, layer))
            else:
                layers.append(layer)
        return nn.Sequential(*layers).eval()

    def _assemble(self, shape: Shape, classes: int, *, normalised: bool) -> nn.Module:
        inputs, height, width = shape
        layers: list[nn.Module] = []
        for outputs in self._channels:
            layers.append(
                nn.Conv2d(inputs, outputs, self._kernel, self._stride, self._kernel // 2)
            )
            if normalised:
                layers.append(nn.BatchNorm2d(outputs))
            layers.append(nn.ReLU())
            inputs = outputs
            height, width = (-(-side // self._stride) for side in (height, width))
        side = max(1, math.isqrt(MOST_FEATURES // inputs))
        if height * width > side * side:
            height, width = min(height, side), min(width, side)
            layers.append(nn.AdaptiveAvgPool2d((height, width)))
        features = inputs * height * width
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, classes))


# Pool(h): the hidden output averaged over neighbourhoods down to h numbers, then one layer.


class PoolingVariant(Variant):
    """Input, pooling, hidden layer of at most h numbers, FC, output."""

    def __init__(self, size: int) -> None:
        self.name = f"Pool({size})"
        self._size = size

    def applies(self, shape: Shape) -> bool:
        return True

    def build(self, shape: Shape, classes: int) -> nn.Module:
        if len(shape) == 1:
            return nn.Linear(shape[0], classes)
        channels = shape[0] if len(shape) == 3 else shape[1]
        sides = shape[1:] if len(shape) == 3 else (shape[0], 1)
        pooled = _pooled(channels, sides, self._size)
        layers: list[nn.Module] = [AsImage()] if len(shape) == 2 else []
        if pooled != sides:
            layers.append(nn.AdaptiveAvgPool2d(pooled))
        return nn.Sequential(
            *layers, nn.Flatten(), nn.Linear(channels * math.prod(pooled), classes)
        )

    build_settled = build


def _pooled(channels: int, sides: tuple[int, ...], size: int) -> tuple[int, int]:
    """Sides after pooling, in the same proportion, so that channels x sides is at most size."""
    height, width = sides
    if channels * height * width <= size:
        return height, width
    share = math.sqrt(size / (channels * height * width))
    return max(1, int(height * share)), max(1, min(width, int(width * share)))


PAPER: tuple[Variant, ...] = (
    FullyConnected(1024),
    FullyConnected(512),
    PoolingVariant(8192),
    PoolingVariant(4096),
    Convolution(3, 1),
    Convolution(5, 2),
)
"""The six of GATI's section 7."""

CATALOGUE: tuple[Variant, ...] = (
    *PAPER,
    Convolution(3, 2, depth=2),
    Convolution(3, 2, depth=3),
)


def variant(name: str) -> Variant:
    """The variant called ``name``; InvalidConfigurationError where there is none."""
    for candidate in CATALOGUE:
        if candidate.name == name:
            return candidate
    known = ", ".join(candidate.name for candidate in CATALOGUE)
    raise InvalidConfigurationError(f"there is no cache variant '{name}'; there are {known}")


__all__ = ["CATALOGUE", "PAPER", "Shape", "Variant", "variant", "weights_bytes"]
