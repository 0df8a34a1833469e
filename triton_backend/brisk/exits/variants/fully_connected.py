"""FC(h): the whole hidden output through one hidden layer of h units."""

from __future__ import annotations

import math

from torch import nn

from brisk.exits.heads.lookup_model import Shape
from brisk.exits.variants.base import Variant


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
