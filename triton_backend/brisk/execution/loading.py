"""Loading: weights bound, values given their slots, now or by lanes while it already runs."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from brisk.errors import BriskError, InternalError, InvalidRequestError
from brisk.execution.plan import NO_CONSTANTS, ExecutionPlan, make_plan
from brisk.graph.program import UNKNOWN_TYPE, ContainerKind, Program, ValueType, Variable
from brisk.graph.reader import read_program
from brisk.segments.program import describe_type, missing_input, unknown_inputs
from brisk.segments.starting import start_lanes, without_collections
from brisk.segments.table import GiveWay, LayerTable
from brisk.segments.timeline import EventKind, clock_ns
from brisk.solutions.base import BodyRunner, Kernel, Solution, dynamic_operands
from brisk.solutions.catalogue import Catalogue, default_catalogue
from brisk.solutions.values import Value, dtype_name, from_numpy


@dataclass(frozen=True, slots=True)
class LoadedLayer:
    """A kernel with the slots it reads, in argument order, writes, and leaves for dead."""

    solution: Solution
    kernel: Kernel
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    dead: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LoadedProgram:
    """A program ready to run on ``device``; shared by all its jobs, never changed.

    ``program`` is without its weights: kernels hold what they need of them. ``inputs``: captures,
    too. ``slots`` by name of a value. ``initial`` is what a new frame's slots hold: constants that
    are outputs, defaults of inputs, else None. ``layers`` are a tuple, or a ``LayerTable`` of
    which some are loaded later.
    """

    program: Program
    device: torch.device
    layers: Sequence[LoadedLayer] | LayerTable[LoadedLayer]
    inputs: tuple[Variable, ...]
    slots: Mapping[str, int]
    outputs: Mapping[str, int]
    initial: tuple[Value, ...]

    def bind_inputs(self, inputs: Mapping[str, Value]) -> list[Value]:
        """The slots of a new frame. Raises InvalidRequestError where an input does not fit."""
        values = list(self.initial)
        taken = 0
        for variable in self.inputs:
            name = variable.name
            if name in inputs:
                values[self.slots[name]] = accept(variable, inputs[name], self.device)
                taken += 1
            elif not variable.optional:
                raise missing_input(name)
        if taken != len(inputs):
            known = [variable.name for variable in self.inputs]
            raise unknown_inputs(inputs, known)
        return values


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
    catalogue = default_catalogue() if catalogue is None else catalogue
    plan = make_plan(program, device, catalogue, outer_constants)
    return bind_layers(plan, [load_layer(plan, index) for index in range(len(plan.layers))])


def bind_layers(
    plan: ExecutionPlan, layers: Sequence[LoadedLayer] | LayerTable[LoadedLayer]
) -> LoadedProgram:
    """The program of ``layers``: loaded, or still to be (``LayerTable``)."""
    program, slots = plan.program, plan.slots
    initial: list[Value] = [None] * len(slots)
    values = {**program.weights, **plan.constants}
    for variable in (*program.inputs, *program.outputs):
        if variable.name in values:
            initial[slots[variable.name]] = from_numpy(values[variable.name], plan.device)
    captured = [
        Variable(name, UNKNOWN_TYPE) for name in program.captures if name not in plan.constants
    ]
    return LoadedProgram(
        program=dataclasses.replace(program, weights={}),
        device=plan.device,
        layers=layers,
        inputs=(*program.inputs, *captured),
        slots=slots,
        outputs={variable.name: slots[variable.name] for variable in program.outputs},
        initial=tuple(initial),
    )


def load_layer(plan: ExecutionPlan, index: int) -> LoadedLayer:
    """Load one layer, in any thread. Raises InternalError where its solution fails to load."""
    planned, slots = plan.layers[index], plan.slots
    problem, solution = planned.problem, planned.solution
    try:
        kernel = solution.load(problem, partial(_load_body, plan))
    except BriskError:
        raise
    except Exception as error:
        raise InternalError(
            f"solution '{solution.name}' accepted {problem.node.describe()} but failed "
            f"to load: {type(error).__name__}: {error}"
        ) from error
    if planned.moves:
        kernel = _with_moves(kernel, planned.moves, problem.device)
    if problem.device.type == "cuda":  # who runs it does so in another stream than this one's
        torch.cuda.current_stream(problem.device).synchronize()
    return LoadedLayer(
        solution=solution,
        kernel=kernel,
        reads=tuple(slots[operand.name] for operand in dynamic_operands(problem)),
        writes=tuple(slots[name] for name in problem.node.outputs),
        dead=tuple(slots[name] for name in plan.program.last_use[index]),
    )


def _load_body(
    plan: ExecutionPlan, body: Program, constants: Mapping[str, np.ndarray]
) -> BodyRunner:
    from brisk.execution.frame import run_serially  # a body runs as a program does

    # A body's declared types are hints: a carried value may grow.
    unchecked = tuple(dataclasses.replace(each, type=UNKNOWN_TYPE) for each in body.inputs)
    body = dataclasses.replace(body, inputs=unchecked)
    loaded = load_program(body, plan.device, plan.catalogue, constants)
    names = [variable.name for variable in body.outputs]

    def run(values: Mapping[str, Value]) -> list[Value]:
        results = run_serially(loaded, values)
        return [move(results[name], plan.device) for name in names]

    return run


def _with_moves(kernel: Kernel, moves: Sequence[int], device: torch.device) -> Kernel:
    """The kernel behind copies of some of its operands to the device."""

    def moved(*values: Value) -> Sequence[Value]:
        arguments = list(values)
        for place in moves:
            arguments[place] = move(arguments[place], device)
        return kernel(*arguments)

    return moved


# What a program accepts as an input: the check before anything runs.


def accept(variable: Variable, value: Value, device: torch.device) -> Value:
    """The value of input ``variable`` on the program's device.

    Triton has no tensors of rank 0: a scalar comes as ``[1]``.
    Raises InvalidRequestError where it is not of the declared container, dtype or shape.
    """
    declared = variable.type
    expected = f"input '{variable.name}': expected "
    if declared.container is ContainerKind.TENSOR and declared.dtype is not None:
        if value is None or isinstance(value, list):
            kind = "nothing" if value is None else "a sequence"
            raise InvalidRequestError(f"{expected}a tensor, got {kind}")
        if declared.rank == 0 and all(size == 1 for size in value.shape):
            value = value.reshape(())
        if dtype_name(value) != declared.dtype or not _fits(value.shape, declared):
            given = ValueType(dtype_name(value), tuple(value.shape))
            raise InvalidRequestError(
                f"{expected}{describe_type(declared)}, got {describe_type(given)}"
            )
    elif declared.container is ContainerKind.SEQUENCE and not isinstance(value, list):
        raise InvalidRequestError(f"{expected}a sequence")
    return move(value, device)


def _fits(shape: tuple[int, ...], declared: ValueType) -> bool:
    if declared.shape is None:
        return True
    return len(shape) == len(declared.shape) and all(
        not isinstance(size, int) or size == actual
        for size, actual in zip(declared.shape, shape, strict=True)
    )


def move(value: Value, device: torch.device) -> Value:
    """The value on ``device``; itself where it is there, or is nothing that torch holds."""
    if isinstance(value, torch.Tensor):
        return value if value.device == device else value.to(device)
    if isinstance(value, list):
        return [move(item, device) for item in value]
    return value


# A start: lanes load layers while whoever asks already runs the program.


@dataclass(frozen=True, slots=True)
class StartingProgram:
    """A program that can run at once, as ``plan`` says."""

    plan: ExecutionPlan
    loaded: LoadedProgram
    table: LayerTable[LoadedLayer]

    def start_lanes(self, threads: int, give_way: GiveWay | None = None) -> list[threading.Thread]:
        """Load all layers in the background, on all cores but the executor's."""
        return start_lanes(self.table, threads, give_way, torch.inference_mode)


def start_program(model: Path, device: torch.device) -> StartingProgram:
    """Make the model runnable; no layer is loaded yet.

    Raises InvalidModelError and its kin where the model cannot be served.
    """
    started_ns = clock_ns()
    with without_collections():
        plan = make_plan(read_program(model), device, default_catalogue())
    table = LayerTable(len(plan.layers), partial(load_layer, plan))
    table.recorder.add("parse", EventKind.PARSE, None, started_ns)
    return StartingProgram(plan, bind_layers(plan, table), table)
