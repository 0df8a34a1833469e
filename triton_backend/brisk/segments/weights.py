"""A model's weights where they lie: in its own file, or in its prepared form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brisk.graph.files.element_types import PACKED

IN_PLACE_BYTES = 4096
"""Initialisers from this size on stay in the file."""


@dataclass(frozen=True, slots=True)
class Weight:
    """``data``: the bytes of an initialiser, uint8, in place; ``kind``: its TensorProto type."""

    data: np.ndarray
    kind: int
    shape: tuple[int, ...]

    @property
    def is_packed(self) -> bool:
        return self.kind in PACKED


@dataclass(frozen=True, slots=True)
class NamedWeight:
    name: str
    weight: Weight
