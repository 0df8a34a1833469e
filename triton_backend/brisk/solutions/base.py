"""What a solution is: one way to compute a layer, with the reason when it cannot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch

from brisk.graph.program import Attribute, Layer, Program, ValueType

Value: TypeAlias = "torch.Tensor | np.ndarray | list[Any] | None"
"""A run-time value.

torch.Tensor on the runtime's device wherever torch has the dtype; numpy.ndarray for the rest
(``object`` arrays of str for strings, ml_dtypes arrays for 4-bit types); list for a sequence;
None for an optional value that is absent. ``brisk.solutions.values`` converts.
"""

Kernel: TypeAlias = Callable[..., Sequence[Value]]
"""A loaded solution: takes the layer's dynamic operands in order, returns all its outputs.

Dynamic operands are ``layer.operands`` without ``""`` and without constants. A kernel never
changes its operands. Its outputs may alias operands or constants only as views.
"""


@dataclass(frozen=True, slots=True)
class Applicability:
    """Whether a solution applies to a problem, and the reason in words."""

    ok: bool
    reason: str


APPLIES = Applicability(True, "applies")


def refused(reason: str) -> Applicability:
    return Applicability(False, reason)


@dataclass(frozen=True, slots=True)
class Operand:
    """One value a problem reads: its static type, and its array where it is a constant."""

    name: str
    type: ValueType
    constant: np.ndarray | None


@dataclass(frozen=True, slots=True)
class Problem:
    """What a layer asks of a kernel on a device.

    ``operands`` follow ``layer.main.inputs``; None where an optional one is left out.
    ``captures`` follow the layer's.
    """

    layer: Layer
    operands: tuple[Operand | None, ...]
    captures: tuple[Operand, ...]
    outputs: tuple[ValueType, ...]
    device: torch.device

    @property
    def operator(self) -> str:
        return self.layer.main.operator

    @property
    def domain(self) -> str:
        return self.layer.main.domain

    @property
    def version(self) -> int:
        return self.layer.main.version

    @property
    def attributes(self) -> Mapping[str, Attribute]:
        return self.layer.main.attributes

    def operand(self, position: int) -> Operand | None:
        """The operand at ``position`` of the main operator; None where absent."""
        return self.operands[position] if position < len(self.operands) else None


BodyRunner: TypeAlias = Callable[[Mapping[str, Value]], "list[Value]"]
"""Runs a body: takes its inputs and captures by name, returns its outputs in order."""


@dataclass(frozen=True, slots=True)
class LoadContext:
    """What a solution may use while it loads.

    ``load_body`` makes a runner of a control-flow body. Captures that are constants of the
    outer program are passed by name in the second argument.
    """

    device: torch.device
    load_body: Callable[[Program, Mapping[str, np.ndarray]], BodyRunner]


class Solution(ABC):
    """One way to solve problems of some operators. Stateless; shared by all models.

    ``check`` must be exact: a problem it accepts is computed right for every value that fits
    the static types.
    """

    name: ClassVar[str]

    @abstractmethod
    def operators(self) -> frozenset[tuple[str, str]]:
        """The (domain, operator) pairs it can be asked about; empty: any."""

    @abstractmethod
    def check(self, problem: Problem) -> Applicability:
        """Decide from static types alone; never raises."""

    def transform(self, problem: Problem) -> Mapping[str, torch.Tensor]:
        """Post-transform weights on the problem's device, by a name of the solution's own."""
        return {}

    @abstractmethod
    def load(
        self, problem: Problem, weights: Mapping[str, torch.Tensor], context: LoadContext
    ) -> Kernel:
        """Make the kernel. ``weights`` is what ``transform`` returned."""
