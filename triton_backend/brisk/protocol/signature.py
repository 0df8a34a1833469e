"""What a network, or a whole pipeline, takes and gives: names, element types and shapes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, TypeAlias


class TensorType(NamedTuple):
    """The type of an input or output."""

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
    """Inputs and outputs by name, in order.

    ``origins``: of an output's sizes, where shape inference has been asked.
    """

    inputs: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]
    origins: Mapping[str, tuple[Origin, ...]] = MappingProxyType({})
