"""The program: a model after graph optimisation, as layers in execution order.

Everything here is immutable and free of torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

import numpy as np

Dimension: TypeAlias = "int | str | None"
"""A size, the name of a symbolic size, or None where nothing is known."""


class ContainerKind(str, Enum):
    """What a value is made of, after ONNX's TypeProto."""

    TENSOR = "tensor"
    SEQUENCE = "sequence"
    OPTIONAL = "optional"
    MAP = "map"
    SPARSE = "sparse"


@dataclass(frozen=True, slots=True)
class ValueType:
    """Static type of a value.

    ``dtype``: numpy/ml_dtypes name (``float32``, ``bfloat16``, ``string``, ``int4`` …), of the
    innermost element for containers; None where inference failed.
    ``shape``: None where even the rank is unknown.
    """

    dtype: str | None
    shape: tuple[Dimension, ...] | None
    container: ContainerKind = ContainerKind.TENSOR

    @property
    def rank(self) -> int | None:
        return None if self.shape is None else len(self.shape)

    @property
    def is_static(self) -> bool:
        """True where every dimension is a number."""
        return self.shape is not None and all(isinstance(size, int) for size in self.shape)


UNKNOWN_TYPE = ValueType(None, None)


@dataclass(frozen=True, slots=True)
class Variable:
    """A named, typed input or output of a program."""

    name: str
    type: ValueType
    optional: bool = False
    """True for a graph input that has an initialiser as its default."""


Attribute: TypeAlias = (
    "int | float | str | np.ndarray | ValueType | Program | "
    "tuple[int, ...] | tuple[float, ...] | tuple[str, ...] | tuple[Program, ...]"
)


@dataclass(frozen=True, slots=True)
class Node:
    """One operator call in its canonical form (see ``brisk.graph.canonical``).

    ``version`` is the operator-set version of ``domain`` whose definition applies.
    ``inputs`` and ``outputs`` hold ``""`` where an optional one is left out.
    """

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    domain: str = ""
    version: int = 1
    name: str = ""

    @property
    def label(self) -> str:
        return self.name or (self.outputs[0] if self.outputs else "?")

    def describe(self) -> str:
        """``node 'conv1' (Conv, domain ai.onnx, opset 18)``, for error messages."""
        return (
            f"node '{self.label}' ({self.operator}, domain {self.domain or 'ai.onnx'}, "
            f"opset {self.version})"
        )

    def input(self, position: int) -> str:
        """The input at ``position``; ``""`` where it is left out."""
        return self.inputs[position] if position < len(self.inputs) else ""

    def integer(self, name: str, default: int) -> int:
        value = self.attributes.get(name, default)
        assert isinstance(value, int), f"{self.describe()}: '{name}' is no integer"
        return value

    def integers(self, name: str) -> tuple[int, ...] | None:
        """An attribute that is a list of int; None where it is absent."""
        value = self.attributes.get(name)
        assert value is None or isinstance(value, tuple), f"{self.describe()}: '{name}' is no list"
        return value  # type: ignore[return-value]  # the operator's schema says so

    def number(self, name: str, default: float) -> float:
        value = self.attributes.get(name, default)
        assert isinstance(value, (int, float)), f"{self.describe()}: '{name}' is no number"
        return float(value)

    @property
    def bodies(self) -> list[Program]:
        """The graphs among the attributes (of If, Loop, Scan, SequenceMap)."""
        values = self.attributes.values()
        return [item for value in values for item in _items(value) if isinstance(item, Program)]

    @property
    def captures(self) -> tuple[str, ...]:
        """Outer values that the bodies read, each once, in order."""
        return tuple(dict.fromkeys(name for body in self.bodies for name in body.captures))

    @property
    def operands(self) -> tuple[str, ...]:
        """All values read, in kernel order; ``""`` stands for an input left out."""
        return self.inputs + self.captures


def _items(value: Attribute) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


ATTENTION = ("brisk", "Attention")
"""Domain and name of the one operator of Brisk's own.

``softmax(scale · query @ key + mask) @ value`` of query ``[batch, heads, length, size]``, key
``[batch, heads, size, keys]``, value ``[batch, heads, keys, size]`` and, optionally, a mask; all
broadcast as in the products it stands for. ``scale``: float; ``zero_masked_rows``: 1 where weights
that are NaN (all keys masked by minus infinity) count as zero.
"""


@dataclass(frozen=True, slots=True)
class Program:
    """Layers in execution order, weights by name, and when each value dies.

    A layer is the unit of loading, running and preempting: one node.

    ``last_use[i]``: computed values (never weights, inputs included) that no layer after
    ``layers[i]`` reads and that are no outputs.
    ``types``: static type of every value that has one, weights included.
    ``weights``: constants by name; arrays are read-only and may be views of the file's bytes.
        Under the name of an optional input: its default, which is no constant.
    ``captures``: for a body of If/Loop/Scan, the outer values it reads; else empty.
    """

    name: str
    inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]
    layers: tuple[Node, ...]
    weights: Mapping[str, np.ndarray]
    types: Mapping[str, ValueType]
    last_use: tuple[tuple[str, ...], ...]
    captures: tuple[str, ...] = ()

    def type_of(self, name: str) -> ValueType:
        """The static type of value ``name``; UNKNOWN_TYPE where inference found none."""
        return self.types.get(name, UNKNOWN_TYPE)
