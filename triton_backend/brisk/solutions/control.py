"""If, Loop, Scan and SequenceMap; their bodies are programs that run on tuned solutions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch

from brisk.graph.program import Program, ValueType
from brisk.solutions.base import Kernel, LoadBody, Problem, Solution
from brisk.solutions.rules import anything, constant_tensor
from brisk.solutions.values import TORCH_DTYPES, Value

Body: TypeAlias = Callable[[Sequence[Value]], "list[Value]"]
"""A loaded body that knows its captures: takes its inputs in order, returns its outputs."""

Compute: TypeAlias = Callable[[Problem, Mapping[str, Body], Sequence[Any]], Sequence[Value]]
"""Takes bodies by attribute, and all operands, None where left out."""


def _load(compute: Compute, problem: Problem, load_body: LoadBody) -> Kernel:
    """Runs bodies in the calling thread, to their end, within the one layer."""
    fixed = {each.name: each.constant for each in problem.captures if each.constant is not None}
    programs = {
        name: value
        for name, value in problem.node.attributes.items()
        if isinstance(value, Program)
    }
    runners = {name: load_body(program, fixed) for name, program in programs.items()}
    captured = [each.name for each in problem.captures if each.constant is None]
    count = len(problem.operands)
    bound = [constant_tensor(problem, position) for position in range(count)]
    dynamic = [position for position in range(count) if problem.is_dynamic(position)]

    def kernel(*values: Value) -> Sequence[Value]:
        operands = list(bound)
        for position, value in zip(dynamic, values, strict=False):
            operands[position] = value
        outer = dict(zip(captured, values[len(dynamic) :], strict=True))

        def run(name: str, inputs: Sequence[Value]) -> list[Value]:
            program = programs[name]
            captures = {each: outer[each] for each in program.captures if each in outer}
            names = [variable.name for variable in program.inputs]
            return runners[name]({**captures, **dict(zip(names, inputs, strict=True))})

        bodies: dict[str, Body] = {name: partial(run, name) for name in programs}
        return compute(problem, bodies, operands)

    return kernel


def _if(problem: Problem, bodies: Mapping[str, Body], operands: Sequence[Any]) -> Sequence[Value]:
    return bodies["then_branch" if operands[0] else "else_branch"]([])


def _loop(
    problem: Problem, bodies: Mapping[str, Body], operands: Sequence[Any]
) -> Sequence[Value]:
    """Body inputs: iteration number, condition, carried values; outputs: condition, carried
    values, then one element of each scan output."""
    program, device = problem.attribute("body", None), problem.device
    count = len(program.inputs) - 2
    limit, carried = operands[0], operands[2:]
    condition = operands[1] if len(operands) > 1 and operands[1] is not None else True
    rows = []
    for trip in itertools.count() if limit is None else range(int(limit)):
        if not condition:
            break
        number = torch.tensor(trip, device=device)
        going_on = torch.as_tensor(condition, device=device).reshape(())
        condition, *made = bodies["body"]([number, going_on, *carried])
        carried = made[:count]
        rows.append(made[count:])
    scans = program.outputs[1 + count :]
    columns = zip(_columns(rows, len(scans)), scans, strict=True)
    return [*carried, *(_stack(items, scan.type, device) for items, scan in columns)]


def _columns(rows: Sequence[Sequence[Any]], count: int) -> list[Sequence[Any]]:
    """What each of ``count`` outputs was in all trips."""
    return list(zip(*rows, strict=True)) if rows else [()] * count


def _stack(
    items: Sequence[Any], declared: ValueType, device: torch.device, axis: int = 0
) -> Value:
    """Scan outputs of each trip along a new axis; of no trips an empty tensor."""
    if items:
        return torch.stack(list(items), axis)
    sizes = [size if isinstance(size, int) else 0 for size in declared.shape or ()]
    return torch.empty([0, *sizes], dtype=TORCH_DTYPES[declared.dtype or ""], device=device)


def _scan(
    problem: Problem, bodies: Mapping[str, Body], operands: Sequence[Any]
) -> Sequence[Value]:
    """Body inputs: states, then one slice of each scanned operand; outputs likewise."""
    if problem.node.version < 9:
        return _batched_scan(problem, bodies["body"], operands)
    return _single_scan(problem, bodies["body"], operands)


def _batched_scan(problem: Problem, body: Body, operands: Sequence[Any]) -> Sequence[Value]:
    """Version 8: the lengths of the sequences come first, and a batch axis on everything.

    Scan outputs of a sequence that is shorter than the longest end in zeros.
    """
    lengths, *rest = operands
    states = len(rest) - problem.attribute("num_scan_inputs", 1)
    batch, longest = rest[-1].shape[:2]
    rows = []
    for row in range(batch):
        length = longest if lengths is None else int(lengths[row])
        picked = [x[row] if i < states else x[row, :length] for i, x in enumerate(rest)]
        made: list[Any] = list(_single_scan(problem, body, picked))
        for i in range(states, len(made)):
            padding = made[i].new_zeros(longest - length, *made[i].shape[1:])
            made[i] = torch.cat((made[i], padding))
        rows.append(made)
    return [torch.stack(column) for column in zip(*rows, strict=True)]


def _single_scan(problem: Problem, body: Body, operands: Sequence[Any]) -> Sequence[Value]:
    scanned = problem.attribute("num_scan_inputs", 1)
    states = len(operands) - scanned
    outputs = problem.attribute("body", None).outputs[states:]
    axes = problem.attribute("scan_input_axes", (0,) * scanned)
    direction = "directions" if problem.node.version < 9 else "scan_input_directions"
    backwards = problem.attribute(direction, (0,) * scanned)
    out_axes = problem.attribute("scan_output_axes", (0,) * len(outputs))
    out_backwards = problem.attribute("scan_output_directions", (0,) * len(outputs))
    carried = list(operands[:states])
    columns = [
        x.unbind(axis)[::-1] if reverse else x.unbind(axis)
        for x, axis, reverse in zip(operands[states:], axes, backwards, strict=True)
    ]
    rows = []
    for row in zip(*columns, strict=True):
        made = body([*carried, *row])
        carried = made[:states]
        rows.append(made[states:])
    found = zip(_columns(rows, len(outputs)), outputs, out_axes, out_backwards, strict=True)
    stacked = [
        _stack(items[::-1] if reverse else items, output.type, problem.device, axis)
        for items, output, axis, reverse in found
    ]
    return [*carried, *stacked]


def _sequence_map(
    problem: Problem, bodies: Mapping[str, Body], operands: Sequence[Any]
) -> Sequence[Value]:
    """The body once for each element; operands that are no sequences are passed each time."""
    rows = [
        bodies["body"]([x[place] if isinstance(x, list) else x for x in operands])
        for place in range(len(operands[0]))
    ]
    return [list(items) for items in _columns(rows, len(problem.node.outputs))]


_OPERATORS: Mapping[str, Compute] = {
    "If": _if,
    "Loop": _loop,
    "Scan": _scan,
    "SequenceMap": _sequence_map,
}

CONTROL: Mapping[str, Solution] = {
    operator: Solution("control", anything, partial(_load, compute))
    for operator, compute in _OPERATORS.items()
}
