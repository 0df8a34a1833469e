"""If, Loop, Scan and SequenceMap; their bodies are programs that run on tuned solutions."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from brisk.graph.program import Program
from brisk.solutions.base import (
    APPLIES,
    Applicability,
    BodyRunner,
    Kernel,
    LoadContext,
    Problem,
    Solution,
    Value,
    refused,
)
from brisk.solutions.rules import attribute
from brisk.solutions.values import TORCH_DTYPES, from_numpy

Run = Callable[[Sequence[Value], Mapping[str, Value]], Sequence[Value]]
"""Takes the main operands, None where left out, and the captures by name."""


class Control(Solution):
    """Runs bodies in the calling thread, to their end, within the one layer."""

    name = "control"

    def operators(self) -> frozenset[tuple[str, str]]:
        return frozenset(("", name) for name in _LOADERS)

    def check(self, problem: Problem) -> Applicability:
        if any(not isinstance(body, Program) for body in _bodies(problem).values()):
            return refused("a body is not a program")
        return APPLIES

    def load(
        self, problem: Problem, weights: Mapping[str, torch.Tensor], context: LoadContext
    ) -> Kernel:
        fixed = {
            operand.name: operand.constant
            for operand in problem.captures
            if operand.constant is not None
        }
        bodies = {name: context.load_body(body, fixed) for name, body in _bodies(problem).items()}
        run = _LOADERS[problem.operator](problem, bodies)
        captured = [operand.name for operand in problem.captures if operand.constant is None]
        main = problem.operands
        bound = [
            None
            if operand is None or operand.constant is None
            else from_numpy(operand.constant, context.device)
            for operand in main
        ]
        dynamic = [i for i, operand in enumerate(main) if operand and operand.constant is None]

        def kernel(*values: Value) -> Sequence[Value]:
            arguments = list(bound)
            for position, value in zip(dynamic, values, strict=False):
                arguments[position] = value
            outer = dict(zip(captured, values[len(dynamic) :], strict=True))
            return run(arguments, outer)

        return kernel


def _bodies(problem: Problem) -> dict[str, Program]:
    names = ("then_branch", "else_branch") if problem.operator == "If" else ("body",)
    return {name: attribute(problem, name, None) for name in names}


def _capturing(body: Program, outer: Mapping[str, Value]) -> dict[str, Value]:
    return {name: outer[name] for name in body.captures if name in outer}


def _load_if(problem: Problem, runners: Mapping[str, BodyRunner]) -> Run:
    bodies = _bodies(problem)
    branches = [(bodies[name], runners[name]) for name in ("else_branch", "then_branch")]

    def run(operands: Sequence[Any], outer: Mapping[str, Value]) -> Sequence[Value]:
        body, runner = branches[bool(operands[0])]
        return runner(_capturing(body, outer))

    return run


def _load_loop(problem: Problem, runners: Mapping[str, BodyRunner]) -> Run:
    """Body inputs: iteration number, condition, carried values; outputs: condition, carried
    values, then one element of each scan output."""
    body, runner = _bodies(problem)["body"], runners["body"]
    names = [variable.name for variable in body.inputs]
    carried_count = len(names) - 2
    scans = body.outputs[1 + carried_count :]
    device = problem.device

    def run(operands: Sequence[Any], outer: Mapping[str, Value]) -> Sequence[Value]:
        limit, condition = operands[0], True if len(operands) < 2 else operands[1]
        condition = True if condition is None else condition
        trips = itertools.count() if limit is None else range(int(limit))
        values = _capturing(body, outer)
        carried = list(operands[2:])
        collected: list[list[Any]] = [[] for _ in scans]
        for trip in trips:
            if not bool(condition):
                break
            values.update(zip(names[2:], carried, strict=True))
            values[names[0]] = torch.tensor(trip, dtype=torch.int64, device=device)
            values[names[1]] = torch.as_tensor(condition, device=device).reshape(())
            condition, *made = runner(values)
            carried = made[:carried_count]
            for items, item in zip(collected, made[carried_count:], strict=True):
                items.append(item)
        stacked = [_stack(items, scan.type, device) for items, scan in zip(collected, scans)]  # noqa: B905
        return [*carried, *stacked]

    return run


def _stack(items: list[Any], declared: Any, device: torch.device) -> Value:
    """Scan outputs of each trip along a new first axis; of no trips an empty tensor."""
    if items:
        return torch.stack(items)
    sizes = [size if isinstance(size, int) else 0 for size in declared.shape or ()]
    return torch.empty([0, *sizes], dtype=TORCH_DTYPES[declared.dtype], device=device)


def _load_scan(problem: Problem, runners: Mapping[str, BodyRunner]) -> Run:
    """Body inputs: states, then one slice of each scanned operand; outputs likewise."""
    return _load_batched_scan(problem, runners) if problem.version < 9 else _scan(problem, runners)


def _load_batched_scan(problem: Problem, runners: Mapping[str, BodyRunner]) -> Run:
    """Version 8: the lengths of the sequences come first, and a batch axis on everything.

    Scan outputs of a sequence that is shorter than the longest end in zeros.
    """
    body = _bodies(problem)["body"]
    states = len(body.inputs) - attribute(problem, "num_scan_inputs", 1)
    scan = _scan(problem, runners)

    def run(operands: Sequence[Any], outer: Mapping[str, Value]) -> Sequence[Value]:
        lengths, *rest = operands
        batch, longest = rest[-1].shape[:2]
        rows = []
        for row in range(batch):
            length = longest if lengths is None else int(lengths[row])
            picked = [x[row] if i < states else x[row, :length] for i, x in enumerate(rest)]
            made = list(scan(picked, outer))
            for i in range(states, len(made)):
                padding = made[i].new_zeros(longest - length, *made[i].shape[1:])  # type: ignore[union-attr]
                made[i] = torch.cat((made[i], padding))  # type: ignore[arg-type]
            rows.append(made)
        return [torch.stack(column) for column in zip(*rows, strict=True)]

    return run


def _scan(problem: Problem, runners: Mapping[str, BodyRunner]) -> Run:
    body, runner = _bodies(problem)["body"], runners["body"]
    names = [variable.name for variable in body.inputs]
    scanned = attribute(problem, "num_scan_inputs", 1)
    states = len(names) - scanned
    made_count = len(body.outputs) - states
    axes = attribute(problem, "scan_input_axes", (0,) * scanned)
    direction = "directions" if problem.version < 9 else "scan_input_directions"
    backwards = attribute(problem, direction, (0,) * scanned)
    out_axes = attribute(problem, "scan_output_axes", (0,) * made_count)
    out_backwards = attribute(problem, "scan_output_directions", (0,) * made_count)
    device = problem.device

    def run(operands: Sequence[Any], outer: Mapping[str, Value]) -> Sequence[Value]:
        values = _capturing(body, outer)
        carried = list(operands[:states])
        columns = [
            x.unbind(axis)[::-1] if reverse else x.unbind(axis)
            for x, axis, reverse in zip(operands[states:], axes, backwards, strict=True)
        ]
        collected: list[list[Any]] = [[] for _ in range(made_count)]
        for row in zip(*columns, strict=True):
            values.update(zip(names, [*carried, *row], strict=True))
            made = runner(values)
            carried = made[:states]
            for items, item in zip(collected, made[states:], strict=True):
                items.append(item)
        stacked: list[Value] = []
        for index, items in enumerate(collected):
            ordered = items[::-1] if out_backwards[index] else items
            if ordered:
                stacked.append(torch.stack(ordered, out_axes[index]))
            else:
                stacked.append(_stack([], body.outputs[states + index].type, device))
        return [*carried, *stacked]

    return run


def _load_sequence_map(problem: Problem, runners: Mapping[str, BodyRunner]) -> Run:
    """The body once for each element; operands that are no sequences are passed each time."""
    body, runner = _bodies(problem)["body"], runners["body"]
    names = [variable.name for variable in body.inputs]

    def run(operands: Sequence[Any], outer: Mapping[str, Value]) -> Sequence[Value]:
        values = _capturing(body, outer)
        results: list[list[Value]] = [[] for _ in body.outputs]
        for place in range(len(operands[0])):
            for name, operand in zip(names, operands, strict=True):
                values[name] = operand[place] if isinstance(operand, list) else operand
            for items, item in zip(results, runner(values), strict=True):
                items.append(item)
        return results

    return run


_LOADERS: dict[str, Callable[[Problem, Mapping[str, BodyRunner]], Run]] = {
    "If": _load_if,
    "Loop": _load_loop,
    "Scan": _load_scan,
    "SequenceMap": _load_sequence_map,
}

SOLUTIONS: Sequence[Solution] = (Control(),)
