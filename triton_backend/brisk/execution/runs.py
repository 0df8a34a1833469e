"""A run of small layers as one layer of a program."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from brisk.compiled.table import Kind
from brisk.execution.loaded_layer import LoadedLayer
from brisk.graph.program import Program
from brisk.native.run import Outside, SmallRun
from brisk.native.sketch import Sketch, Steps, WeightsOf
from brisk.solutions.base import Solution, Value

LoadMembers = Callable[[], Sequence[LoadedLayer]]
"""The layers of a run one by one, for requests that it does not fit."""


@dataclass(frozen=True, slots=True)
class DrawnRun:
    """The layers of a program from ``first`` to ``last`` as steps, for up to ``images`` images.

    ``inputs`` and ``outputs``: values by name, in the order of the steps' places.
    """

    first: int
    last: int
    inputs: Mapping[str, Outside]
    outputs: Mapping[str, Outside]
    images: int
    drawn: Sketch | Steps

    @property
    def large_layers(self) -> frozenset[int]:
        """Layers whose weights are those of their own kernels; none once it is made of steps."""
        return self.drawn.large_layers() if isinstance(self.drawn, Sketch) else frozenset()

    @property
    def has_large(self) -> bool:
        """Whether a layer of the compiled library is part of it."""
        steps = self.drawn.steps if isinstance(self.drawn, Sketch) else self.drawn.entries
        return any(step.kind == Kind.LAYER for step in steps)

    def bound(self, weights_of: WeightsOf) -> DrawnRun:
        """With the weights of ``large_layers``."""
        if not self.large_layers:
            return self
        assert isinstance(self.drawn, Sketch)
        return dataclasses.replace(self, drawn=self.drawn.bound(weights_of))

    @property
    def places(self) -> range:
        return range(self.first, self.last + 1)

    def load(
        self,
        program: Program,
        slots: Mapping[str, int],
        solution: Solution,
        load_members: LoadMembers,
        *,
        unlocked: bool = False,
    ) -> LoadedLayer:
        """The run as a layer. ``slots`` of ``program``'s values; ``solution``: of its first layer.

        ``unlocked`` as of ``SmallRun``.
        """
        reads = tuple(slots[name] for name in self.inputs)
        writes = tuple(slots[name] for name in self.outputs)
        kernel = SmallRun(
            self.drawn,
            tuple(self.inputs.values()),
            tuple(self.outputs.values()),
            self.images,
            _LayerByLayer(load_members, reads, writes),
            unlocked,
        )
        died = {name for place in self.places for name in program.last_use[place]}
        dead = tuple(slots[name] for name in (*self.inputs, *self.outputs) if name in died)
        return LoadedLayer(program.layers[self.first], solution, kernel, reads, writes, dead)


def empty_layer(program: Program, place: int, solution: Solution) -> LoadedLayer:
    """A layer that an earlier one, a run, has computed already."""
    return LoadedLayer(program.layers[place], solution, _do_nothing, (), (), ())


def _do_nothing() -> Sequence[Value]:
    return ()


def as_steps(weights: Mapping[str, torch.Tensor]) -> tuple[np.ndarray, np.ndarray]:
    """Weights and bias of a layer of the compiled library, in the same memory."""
    return weights["panels"].numpy(), weights["bias"].numpy()


class _LayerByLayer:
    """The members' own kernels, one after the other."""

    def __init__(
        self, load_members: LoadMembers, reads: Sequence[int], writes: Sequence[int]
    ) -> None:
        self._load = load_members
        self._members: Sequence[LoadedLayer] | None = None
        self._reads = tuple(reads)
        self._writes = tuple(writes)

    def __call__(self, *operands: Value) -> Sequence[Value]:
        if self._members is None:
            self._members = self._load()
        values = dict(zip(self._reads, operands, strict=True))
        for member in self._members:
            made = member.kernel(*[values[slot] for slot in member.reads])
            values.update(zip(member.writes, made, strict=False))
        return [values[slot] for slot in self._writes]
