"""The family of predictor architectures. Another one: a class in
``families``, and a line in the list."""

from __future__ import annotations

from brisk.errors import InvalidConfigurationError
from brisk.exits.heads.lookup_model import Shape
from brisk.exits.variants.base import Variant, weights_bytes
from brisk.exits.variants.families import Convolution, FullyConnected, PoolingVariant

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
