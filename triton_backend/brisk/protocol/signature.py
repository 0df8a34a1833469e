"""The signature of a network or pipeline: names, types and shapes of its inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias


class TensorType(NamedTuple):
    """The element type and shape of an input or output."""

    element: str | None
    """The element type, such as ``float32``; None if unknown."""
    shape: tuple[int | None, ...] | None
    """The sizes, each None if it is dynamic or unknown; None in all if the rank is unknown."""
    is_optional: bool = False
    """Whether it is an input with a default."""

    def __str__(self) -> str:
        sizes = "…" if self.shape is None else ", ".join(str(s or "?") for s in self.shape)
        return f"{self.element or 'unknown'} [{sizes}]"


Origin: TypeAlias = "Literal['batch', 'input'] | None"
"""The origin of a dynamic size of an output: ``batch``, the first size of the inputs, or
``input``, another one that the inputs decide. None if it is unknown, or the size is not
dynamic."""


class NetworkSignature(NamedTuple):
    """The inputs and outputs of a network by name, in order.

    ``origins``: the origin of each size of an output, for outputs that shape inference knows.
    """

    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]
    origins: Mapping[str, tuple[Origin, ...]] = MappingProxyType({})
