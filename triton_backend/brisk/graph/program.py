"""The inputs and outputs of a model: named values and their static types. Immutable."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

Dimension: TypeAlias = "int | str | None"
"""A size, the name of a symbolic size, or None if it is unknown."""


class ContainerKind(str, Enum):
    """The kind of a value, after ONNX's TypeProto."""

    TENSOR = "tensor"
    SEQUENCE = "sequence"
    OPTIONAL = "optional"
    MAP = "map"
    SPARSE = "sparse"


@dataclass(frozen=True, slots=True)
class ValueType:
    """Static type of a value."""

    dtype: str | None
    """The name in numpy or ml_dtypes (``float32``, ``bfloat16``, ``string``, ``int4`` …), of the
    innermost element for containers; None: inference failed."""
    shape: tuple[Dimension, ...] | None
    """The dimensions; None if even the rank is unknown."""
    container: ContainerKind = ContainerKind.TENSOR

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether every dimension is a number."""
        return self.shape is not None and all(isinstance(size, int) for size in self.shape)


UNKNOWN_TYPE = ValueType(None, None)


@dataclass(frozen=True, slots=True)
class Variable:
    """A named, typed input or output of a program."""

    name: str
    type: ValueType
    optional: bool = False
    """Whether it is a graph input that has an initialiser as its default."""
