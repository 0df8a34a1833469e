"""The signature of a network or pipeline: names, types and shapes of its inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias


class TensorType(NamedTuple):
    """The element type and shape of an input or output."""

    element: str | None
    """``float32`` and so on; None: unknown."""
    shape: tuple[int | None, ...] | None
    """A size is None if it is dynamic or unknown, the shape if its rank is."""
    is_optional: bool = False
    """Whether it is an input with a default."""

    def __str__(self) -> str:
        sizes = "…" if self.shape is None else ", ".join(str(s or "?") for s in self.shape)
        return f"{self.element or 'unknown'} [{sizes}]"


Origin: TypeAlias = "Literal['batch', 'input'] | None"
"""Which dynamic size a size of an output is known to be: the first one of the inputs, another one
that the inputs decide, or nothing is known."""


class NetworkSignature(NamedTuple):
    """The inputs and outputs of a network by name, in order.

    ``origins``: the origin of each size of an output, for outputs that shape inference knows.
    """

    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]
    origins: Mapping[str, tuple[Origin, ...]] = MappingProxyType({})
