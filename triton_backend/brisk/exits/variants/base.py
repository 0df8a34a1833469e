"""What a cache variant is: an architecture for predictor networks (GATI, section 3.1, Table 3)."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import nn

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
