"""Loading: weights bound, values given their slots."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from brisk.errors import BriskError, InternalError, InvalidRequestError
from brisk.execution.inputs import InputSlot, move
from brisk.execution.plan import NO_CONSTANTS, ExecutionPlan, make_plan
from brisk.graph.program import UNKNOWN_TYPE, Layer, Program, Variable
from brisk.segments.table import LayerTable
from brisk.solutions.base import BodyRunner, Kernel, Solution, dynamic_operands
from brisk.solutions.catalogue import Catalogue, default_catalogue
from brisk.solutions.values import Value, from_numpy


@dataclass(frozen=True, slots=True)
class LoadedLayer:
    """A kernel with the slots it reads, in argument order, writes, and leaves for dead."""

    layer: Layer
    solution: Solution
    kernel: Kernel
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    dead: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LoadedProgram:
    """A program ready to run on ``device``; shared by all its jobs, never changed.

    ``program`` is without its weights: kernels hold what they need of them. ``initial`` is what
    a new frame's slots hold: constants that are outputs, defaults of inputs, else None.
    ``layers`` are a tuple, or a ``LayerTable`` of which some are loaded later.
    """

    program: Program
    device: torch.device
    layers: Sequence[LoadedLayer] | LayerTable[LoadedLayer]
    inputs: tuple[InputSlot, ...]
    outputs: Mapping[str, int]
    initial: tuple[Value, ...]

    def bind_inputs(self, inputs: Mapping[str, Value]) -> list[Value]:
        """The slots of a new frame. Raises InvalidRequestError where an input does not fit."""
        values = list(self.initial)
        taken = 0
        for slot in self.inputs:
            if slot.variable.name in inputs:
                values[slot.index] = slot.accept(inputs[slot.variable.name], self.device)
                taken += 1
            elif slot.is_required:
                raise InvalidRequestError(
                    f"input '{slot.variable.name}' of model '{self.program.name}' is missing"
                )
        if taken != len(inputs):
            known = [slot.variable.name for slot in self.inputs]
            unknown = sorted(set(inputs) - set(known))
            raise InvalidRequestError(
                f"model '{self.program.name}' has no input {unknown}; its inputs are {known}"
            )
        return values

    def check_requested(self, requested: Sequence[str] | None) -> Mapping[str, int]:
        """Slot by requested output. Raises InvalidRequestError where there is no such output."""
        if requested is None or tuple(requested) == tuple(self.outputs):
            return self.outputs
        unknown = [name for name in requested if name not in self.outputs]
        if unknown:
            raise InvalidRequestError(
                f"model '{self.program.name}' has no output {unknown}; "
                f"its outputs are {list(self.outputs)}"
            )
        return {name: self.outputs[name] for name in requested}


def load_program(
    program: Program,
    device: torch.device,
    catalogue: Catalogue | None = None,
    outer_constants: Mapping[str, np.ndarray] = NO_CONSTANTS,
) -> LoadedProgram:
    """Load every layer, one after the other.

    Raises UnsupportedOperatorError where a layer has no solution, InternalError where one fails
    to load. ``outer_constants``: for a body, what it captures that never changes.
    """
    catalogue = catalogue or default_catalogue()
    loader = ProgramLoader(make_plan(program, device, catalogue, outer_constants), catalogue)
    return loader.program(tuple(map(loader.layer, range(len(program.layers)))))


class ProgramLoader:
    """Loads the layers of a plan, in any order and thread, and makes the program of them."""

    def __init__(self, plan: ExecutionPlan, catalogue: Catalogue) -> None:
        self._plan, self._catalogue = plan, catalogue
        program = plan.program
        names = [variable.name for variable in program.inputs]
        names += [name for name in program.captures if name not in plan.constants]
        names += [name for layer in program.layers for name in layer.outputs if name]
        names += [variable.name for variable in program.outputs]
        self._slots = {name: index for index, name in enumerate(dict.fromkeys(names))}
        self._slots[""] = len(self._slots)  # of all outputs that are left out

    def program(self, layers: Sequence[LoadedLayer] | LayerTable[LoadedLayer]) -> LoadedProgram:
        """``layers``: loaded, or still to be (``LayerTable``)."""
        plan, program, slots = self._plan, self._plan.program, self._slots
        initial: list[Value] = [None] * len(slots)
        values = {**program.weights, **plan.constants}
        for variable in (*program.inputs, *program.outputs):
            if variable.name in values:
                initial[slots[variable.name]] = from_numpy(values[variable.name], plan.device)
        captured = [
            InputSlot(slots[name], Variable(name, UNKNOWN_TYPE), True)
            for name in program.captures
            if name not in plan.constants
        ]
        inputs = [
            InputSlot(slots[variable.name], variable, variable.name not in program.weights)
            for variable in program.inputs
        ]
        return LoadedProgram(
            program=dataclasses.replace(program, weights={}),
            device=plan.device,
            layers=layers,
            inputs=(*inputs, *captured),
            outputs={variable.name: slots[variable.name] for variable in program.outputs},
            initial=tuple(initial),
        )

    def layer(self, index: int) -> LoadedLayer:
        """Load one layer. Raises InternalError where its solution fails to load."""
        planned, slots = self._plan.layers[index], self._slots
        problem, solution = planned.problem, planned.solution
        layer = problem.layer
        try:
            kernel = solution.load(problem, self._load_body)
        except BriskError:
            raise
        except Exception as error:
            raise InternalError(
                f"solution '{solution.name}' accepted {layer.main.describe()} but failed to load: "
                f"{type(error).__name__}: {error}"
            ) from error
        if planned.moves:
            kernel = _with_moves(kernel, planned.moves, problem.device)
        if problem.device.type == "cuda":  # who runs it does so in another stream than this one's
            torch.cuda.current_stream(problem.device).synchronize()
        last_use = self._plan.program.last_use[index]
        return LoadedLayer(
            layer=layer,
            solution=solution,
            kernel=kernel,
            reads=tuple(slots[operand.name] for operand in dynamic_operands(problem)),
            writes=tuple(slots[name] for name in layer.outputs),
            dead=tuple(slots[name] for name in last_use if name in slots),
        )

    def _load_body(self, body: Program, constants: Mapping[str, np.ndarray]) -> BodyRunner:
        from brisk.execution.frame import run_serially  # a body runs as a program does

        device = self._plan.device
        checked = load_program(body, device, self._catalogue, constants)
        inputs = tuple(slot.unchecked() for slot in checked.inputs)
        loaded = dataclasses.replace(checked, inputs=inputs)
        names = [variable.name for variable in body.outputs]

        def run(values: Mapping[str, Value]) -> list[Value]:
            results = run_serially(loaded, values)
            return [move(results[name], device) for name in names]

        return run


def _with_moves(kernel: Kernel, moves: Sequence[int], device: torch.device) -> Kernel:
    """The kernel behind copies of some of its operands to the device."""

    def moved(*values: Value) -> Sequence[Value]:
        arguments = list(values)
        for place in moves:
            arguments[place] = move(arguments[place], device)
        return kernel(*arguments)

    return moved
