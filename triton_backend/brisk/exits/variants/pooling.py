"""Pool(h): the hidden output averaged over neighbourhoods down to h numbers, then one layer."""

from __future__ import annotations

import math

from torch import nn

from brisk.exits.heads.lookup_model import Shape
from brisk.exits.variants.base import AsImage, Variant


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
