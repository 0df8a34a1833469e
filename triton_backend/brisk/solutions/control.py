"""If, Loop, Scan and SequenceMap; their bodies are programs that run on tuned solutions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from brisk.graph.program import Program, ValueType
from brisk.solutions.base import BodyRunner, Kernel, LoadBody, Problem, Solution
from brisk.solutions.rules import constant_tensor
from brisk.solutions.values import TORCH_DTYPES, Value

Body = Callable[[Sequence[Value]], "list[Value]"]
"""A loaded body that knows its captures: takes its inputs in order, returns its outputs."""


class Control(Solution):
    """Runs bodies in the calling thread, to their end, within the one layer."""

    name = "control"

    def __init__(self) -> None:
        self.operators = {("", name) for name in _OPERATORS}

    def check(self, problem: Problem) -> str | None:
        return None

    def load(self, problem: Problem, load_body: LoadBody) -> Kernel:
        fixed = {
            operand.name: operand.constant
            for operand in problem.captures
            if operand.constant is not None
        }
        programs = {name: problem.attribute(name, None) for name in _body_names(problem)}
        runners = {name: load_body(program, fixed) for name, program in programs.items()}
        compute = _OPERATORS[problem.operator]
        captured = [operand.name for operand in problem.captures if operand.constant is None]
        count = len(problem.operands)
        bound = [constant_tensor(problem, position) for position in range(count)]
        dynamic = [position for position in range(count) if problem.is_dynamic(position)]

        def kernel(*values: Value) -> Sequence[Value]:
            operands = list(bound)
            for position, value in zip(dynamic, values, strict=False):
                operands[position] = value
            outer = dict(zip(captured, values[len(dynamic) :], strict=True))
            bodies = {
                name: _with_captures(program, runners[name], outer)
                for name, program in programs.items()
            }
            return compute(problem, bodies, operands)

        return kernel


def _body_names(problem: Problem) -> tuple[str, ...]:
    return ("then_branch", "else_branch") if problem.operator == "If" else ("body",)


def _with_captures(program: Program, runner: BodyRunner, outer: Mapping[str, Value]) -> Body:
    captures = {name: outer[name] for name in program.captures if name in outer}
    names = [variable.name for variable in program.inputs]
    return lambda inputs: runner({**captures, **dict(zip(names, inputs, strict=True))})


def _if(problem: Problem, bodies: Mapping[str, Body], operands: Sequence[Any]) -> Sequence[Value]:
    return bodies["then_branch" if operands[0] else "else_branch"]([])


def _loop(
    problem: Problem, bodies: Mapping[str, Body], operands: Sequence[Any]
) -> Sequence[Value]:
    """Body inputs: iteration number, condition, carried values; outputs: condition, carried
    values, then one element of each scan output."""
    program, device = problem.attribute("body", None), problem.device
    carried_count = len(program.inputs) - 2
    limit, carried = operands[0], operands[2:]
    condition = operands[1] if len(operands) > 1 and operands[1] is not None else True
    scans = program.outputs[1 + carried_count :]
    collected: list[list[Any]] = [[] for _ in scans]
    for trip in itertools.count() if limit is None else range(int(limit)):
        if not condition:
            break
        number = torch.tensor(trip, device=device)
        going_on = torch.as_tensor(condition, device=device).reshape(())
        condition, *made = bodies["body"]([number, going_on, *carried])
        carried = made[:carried_count]
        for items, item in zip(collected, made[carried_count:], strict=True):
            items.append(item)
    stacked = [
        _stack(items, scan.type, device) for items, scan in zip(collected, scans, strict=True)
    ]
    return [*carried, *stacked]


def _stack(items: list[Any], declared: ValueType, device: torch.device, axis: int = 0) -> Value:
    """Scan outputs of each trip along a new axis; of no trips an empty tensor."""
    if items:
        return torch.stack(items, axis)
    sizes = [size if isinstance(size, int) else 0 for size in declared.shape or ()]
    return torch.empty([0, *sizes], dtype=TORCH_DTYPES[declared.dtype or ""], device=device)


def _scan(
    problem: Problem, bodies: Mapping[str, Body], operands: Sequence[Any]
) -> Sequence[Value]:
    """Body inputs: states, then one slice of each scanned operand; outputs likewise."""
    if problem.version < 9:
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
    direction = "directions" if problem.version < 9 else "scan_input_directions"
    backwards = problem.attribute(direction, (0,) * scanned)
    out_axes = problem.attribute("scan_output_axes", (0,) * len(outputs))
    out_backwards = problem.attribute("scan_output_directions", (0,) * len(outputs))
    carried = list(operands[:states])
    columns = [
        x.unbind(axis)[::-1] if reverse else x.unbind(axis)
        for x, axis, reverse in zip(operands[states:], axes, backwards, strict=True)
    ]
    collected: list[list[Any]] = [[] for _ in outputs]
    for row in zip(*columns, strict=True):
        made = body([*carried, *row])
        carried = made[:states]
        for items, item in zip(collected, made[states:], strict=True):
            items.append(item)
    stacked = [
        _stack(items[::-1] if reverse else items, output.type, problem.device, axis)
        for items, output, axis, reverse in zip(
            collected, outputs, out_axes, out_backwards, strict=True
        )
    ]
    return [*carried, *stacked]


def _sequence_map(
    problem: Problem, bodies: Mapping[str, Body], operands: Sequence[Any]
) -> Sequence[Value]:
    """The body once for each element; operands that are no sequences are passed each time."""
    results: list[list[Value]] = [[] for _ in problem.layer.outputs]
    for place in range(len(operands[0])):
        inputs = [x[place] if isinstance(x, list) else x for x in operands]
        for items, item in zip(results, bodies["body"](inputs), strict=True):
            items.append(item)
    return results


_OPERATORS: Mapping[
    str, Callable[[Problem, Mapping[str, Body], Sequence[Any]], Sequence[Value]]
] = {"If": _if, "Loop": _loop, "Scan": _scan, "SequenceMap": _sequence_map}
