"""What a solution is: one way to compute a layer, with the reason when it cannot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch

from brisk.graph.program import Node, Program, ValueType
from brisk.solutions.values import Value, dtype_name

Kernel: TypeAlias = Callable[..., Sequence[Value]]
"""A loaded solution: takes the layer's dynamic operands in order, returns all its outputs.

Dynamic operands are ``node.operands`` without ``""`` and without constants. A kernel never
changes its operands. Its outputs may alias operands or constants only as views.
"""

BodyRunner: TypeAlias = Callable[[Mapping[str, Value]], "list[Value]"]
"""Runs a body: takes its inputs and captures by name, returns its outputs in order."""

LoadBody: TypeAlias = Callable[[Program, Mapping[str, np.ndarray]], BodyRunner]
"""Loads the body of a control-flow operator with what it captures that never changes, by name."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One value a problem reads: its static type, and its array where it is a constant."""

    name: str
    type: ValueType
    constant: np.ndarray | None


@dataclass(frozen=True, slots=True)
class Problem:
    """What a layer asks of a kernel on a device.

    ``operands`` follow ``node.inputs``; None where an optional one is left out.
    ``captures`` follow the node's.
    """

    node: Node
    operands: tuple[Operand | None, ...]
    captures: tuple[Operand, ...]
    outputs: tuple[ValueType, ...]
    device: torch.device

    @property
    def operator(self) -> str:
        return self.node.operator

    def operand(self, position: int) -> Operand | None:
        """The operand at ``position``; None where absent."""
        return self.operands[position] if position < len(self.operands) else None

    def attribute(self, name: str, default: Any) -> Any:
        """An attribute of the node, or the default of its definition."""
        return self.node.attributes.get(name, default)

    def dtype(self, position: int = 0) -> str | None:
        """The element type of an operand where it is known."""
        operand = self.operand(position)
        return None if operand is None else operand.type.dtype

    def rank(self, position: int = 0) -> int | None:
        """The rank of an operand where it is known."""
        operand = self.operand(position)
        return None if operand is None else operand.type.rank

    def constant(self, position: int) -> Any:
        """A constant operand as Python numbers (nested lists); None where absent or dynamic."""
        operand = self.operand(position)
        if operand is None or operand.constant is None:
            return None
        return operand.constant.tolist()

    def is_dynamic(self, position: int) -> bool:
        operand = self.operand(position)
        return operand is not None and operand.constant is None


def make_problem(
    program: Program, node: Node, constants: Mapping[str, np.ndarray], device: torch.device
) -> Problem:
    """The problem of ``node``; ``constants`` are all values that never change, by name."""

    def operand(name: str) -> Operand:
        constant = constants.get(name)
        if constant is None:
            return Operand(name, program.type_of(name), None)
        return Operand(name, ValueType(dtype_name(constant), constant.shape), constant)

    return Problem(
        node,
        operands=tuple(operand(name) if name else None for name in node.inputs),
        captures=tuple(map(operand, node.captures)),
        outputs=tuple(map(program.type_of, node.outputs)),
        device=device,
    )


def dynamic_operands(problem: Problem) -> tuple[Operand, ...]:
    """The operands that a kernel is called with, in its argument order."""
    every = (*problem.operands, *problem.captures)
    return tuple(each for each in every if each is not None and each.constant is None)


@dataclass(frozen=True, slots=True)
class Solution:
    """One way to compute layers of some operator. Stateless; shared by all models.

    ``check``: why it does not apply; None where it does, for every value of the static types. It
    decides from these types alone, and never raises. ``load``: the kernel of a problem that
    ``check`` has nothing against.
    """

    name: str
    check: Callable[[Problem], str | None]
    load: Callable[[Problem, LoadBody], Kernel]
