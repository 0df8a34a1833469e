"""Loading: solutions chosen, weights transformed and bound, values given their slots."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from brisk.errors import BriskError, InternalError, InvalidRequestError
from brisk.execution.inputs import InputSlot, move
from brisk.execution.plan import NO_CONSTANTS, LayerPlan, constants_of, make_plan
from brisk.graph.program import Layer, Program
from brisk.solutions.base import BodyRunner, Kernel, LoadContext, Solution, Value
from brisk.solutions.catalogue import Catalogue, default_catalogue
from brisk.solutions.problem import dynamic_operands
from brisk.solutions.values import from_numpy

# A layer that can run.


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
    layers: Sequence[LoadedLayer]
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
    plan = make_plan(program, device, catalogue, outer_constants)
    frame = FramePlan.of(program, outer_constants)
    layers = tuple(load_layer(planned, frame, catalogue) for planned in plan.layers)
    return frame.assemble(device, layers)


@dataclass(frozen=True, slots=True)
class FramePlan:
    """Where the values of a program's frames go: a slot for each, constants apart."""

    program: Program
    constants: Mapping[str, np.ndarray]
    slots: Mapping[str, int]

    @classmethod
    def of(
        cls, program: Program, outer_constants: Mapping[str, np.ndarray] = NO_CONSTANTS
    ) -> FramePlan:
        constants = constants_of(program, outer_constants)
        return cls(program, constants, _assign_slots(program, constants))

    def assemble(self, device: torch.device, layers: Sequence[LoadedLayer]) -> LoadedProgram:
        """The program with its layers, loaded or still to be (``LayerTable``)."""
        program, constants, slots = self.program, self.constants, self.slots
        initial: list[Value] = [None] * (len(slots) + 1)
        kept = {variable.name for variable in (*program.inputs, *program.outputs)}
        for name in kept & (program.weights.keys() | constants.keys()):
            array = constants[name] if name in constants else program.weights[name]
            initial[slots[name]] = from_numpy(array, device)
        captured = [name for name in program.captures if name in slots and name not in constants]
        return LoadedProgram(
            program=dataclasses.replace(program, weights={}),
            device=device,
            layers=layers,
            inputs=tuple(
                InputSlot(slots[variable.name], variable, variable.name not in program.weights)
                for variable in program.inputs
            )
            + tuple(InputSlot.captured(slots[name], name) for name in captured),
            outputs={variable.name: slots[variable.name] for variable in program.outputs},
            initial=tuple(initial),
        )


def _assign_slots(program: Program, constants: Mapping[str, np.ndarray]) -> dict[str, int]:
    """A slot for every value of a frame. ``""``, an output left out, has the last one."""
    names = [variable.name for variable in program.inputs]
    names += [name for name in program.captures if name not in constants]
    names += [name for layer in program.layers for name in layer.outputs if name]
    names += [variable.name for variable in program.outputs]
    slots = {name: index for index, name in enumerate(dict.fromkeys(names))}
    slots[""] = len(slots)
    return slots


def load_layer(
    planned: LayerPlan,
    frame: FramePlan,
    catalogue: Catalogue,
) -> LoadedLayer:
    """Load one layer. Raises InternalError where its solution fails to load."""
    problem, solution = planned.problem, planned.solution
    layer, slots = problem.layer, frame.slots
    context = _load_context(problem.device, catalogue)
    try:
        kernel = solution.load(problem, solution.transform(problem), context)
    except BriskError:
        raise
    except Exception as error:
        raise InternalError(
            f"solution '{solution.name}' accepted {layer.main.describe()} but failed to load: "
            f"{type(error).__name__}: {error}"
        ) from error
    if planned.moves:
        kernel = _with_moves(kernel, planned.moves, problem.device)
    if problem.device.type == "cuda":  # who runs it does so in another stream than this thread's
        torch.cuda.current_stream(problem.device).synchronize()
    return LoadedLayer(
        layer=layer,
        solution=solution,
        kernel=kernel,
        reads=tuple(slots[operand.name] for operand in dynamic_operands(problem)),
        writes=tuple(slots[name] for name in layer.outputs),
        dead=tuple(slots[name] for name in frame.program.last_use[layer.index] if name in slots),
    )


def _with_moves(kernel: Kernel, moves: Sequence[int], device: torch.device) -> Kernel:
    """The kernel behind copies of some of its operands to the device."""

    def moved(*values: Value) -> Sequence[Value]:
        arguments = list(values)
        for place in moves:
            arguments[place] = move(arguments[place], device)
        return kernel(*arguments)

    return moved


def _load_context(device: torch.device, catalogue: Catalogue) -> LoadContext:
    def load_body(body: Program, constants: Mapping[str, np.ndarray]) -> BodyRunner:
        from brisk.execution.frame import TorchFrame  # a body runs as a program does

        checked = load_program(body, device, catalogue, constants)
        loaded = dataclasses.replace(
            checked, inputs=tuple(slot.unchecked() for slot in checked.inputs)
        )
        names = [variable.name for variable in body.outputs]

        def run(values: Mapping[str, Value]) -> list[Value]:
            frame = TorchFrame(loaded, values)
            while not frame.step():
                pass
            results = frame.results()
            return [move(results[name], device) for name in names]

        return run

    return LoadContext(device=device, load_body=load_body)
