"""The program: a model after graph optimisation, as layers in execution order.

Everything here is immutable and free of torch. A ``Layer`` keeps the ONNX nodes it was made
of, so that the reference solution can execute any layer, fused or not, straight from the
operators' definition: each fusion carries its own oracle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

    def describe(self) -> str:
        """``node 'conv1' (Conv, domain ai.onnx, opset 18)``, for error messages."""
        label = self.name or (self.outputs[0] if self.outputs else "?")
        return (
            f"node '{label}' ({self.operator}, domain {self.domain or 'ai.onnx'}, "
            f"opset {self.version})"
        )


@dataclass(frozen=True, slots=True)
class Epilogue:
    """One element-wise step fused behind a layer's main operator, applied in order.

    ``operator`` is an ONNX operator name (``Relu``, ``Clip``, ``Sigmoid``, ``HardSwish``,
    ``Gelu``, ``Add`` …) or ``Silu``. For ``Add`` and other binary steps ``operand`` names the
    second value; ``operand_first`` says that it is the left-hand one.
    """

    operator: str
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    operand: str | None = None
    operand_first: bool = False


@dataclass(frozen=True, slots=True)
class Layer:
    """The unit of loading, running and preempting: one fused operator group.

    ``main``: the operator to solve, with all values it reads except epilogue operands; its
        ``operator`` may be Brisk's own fused one (domain ``brisk``: ``Attention``,
        ``LayerNormalization`` …, listed in ``brisk.graph.fusions``).
    ``epilogue``: element-wise steps applied to ``main``'s first output.
    ``nodes``: ONNX nodes in order that together mean the same; the oracle.
    ``captures``: values that bodies of control-flow nodes read from this graph.
    """

    index: int
    main: Node
    nodes: Sequence[Node]
    outputs: tuple[str, ...]
    epilogue: tuple[Epilogue, ...] = ()
    captures: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.main.name or self.outputs[0]

    @property
    def operands(self) -> tuple[str, ...]:
        """All values read, in kernel order: main inputs, epilogue operands, captures.

        ``""`` stands for a main input left out.
        """
        if not self.epilogue:
            return self.main.inputs + self.captures
        extra = tuple(step.operand for step in self.epilogue if step.operand is not None)
        return self.main.inputs + extra + self.captures


@dataclass(frozen=True, slots=True)
class Program:
    """Layers in execution order, weights by name, and when each value dies.

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
    layers: tuple[Layer, ...]
    weights: Mapping[str, np.ndarray]
    types: Mapping[str, ValueType]
    last_use: tuple[tuple[str, ...], ...]
    captures: tuple[str, ...] = ()

    def type_of(self, name: str) -> ValueType:
        """The static type of value ``name``; UNKNOWN_TYPE where inference found none."""
        return self.types.get(name, UNKNOWN_TYPE)
