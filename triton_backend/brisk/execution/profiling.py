"""Measuring what each layer's candidates cost on this machine, on one core, layer by layer."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from brisk.artefacts.checksum import checksum
from brisk.errors import BriskError
from brisk.execution.artefact import LayerCosts
from brisk.execution.cold_plan import cold_solutions
from brisk.execution.kept import can_keep
from brisk.execution.loading import FramePlan, LoadedLayer, load_layer
from brisk.execution.plan import LayerPlan, Plan
from brisk.execution.selection import Candidate
from brisk.graph.program import Variable
from brisk.solutions import opaque
from brisk.solutions.base import Solution, Value
from brisk.solutions.catalogue import Catalogue
from brisk.solutions.values import TORCH_DTYPES

RUNS = 3
"""Of each candidate; the first makes its primitive and is told apart."""

SYMBOLIC_SIZE = 64
"""Stands for sizes that are not known, other than the batch, which is 1."""

MOST_CANDIDATES = 4
_SAMPLE_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class Measured:
    """A candidate with the costs behind it."""

    candidate: Candidate
    costs: LayerCosts


def profile(
    plan: Plan, catalogue: Catalogue, longest_s: float, breathe: Callable[[], None]
) -> list[list[Measured]]:
    """For each layer its candidates, measured; empty where it could not be run or time ran out.

    Inputs are made up: random numbers, ones for integers, so a program whose flow depends on
    its values may be measured on another path than it takes.
    """
    until_s = time.monotonic() + longest_s
    frame = FramePlan.of(plan.program)
    byte_ns = _verification_ns_per_byte()
    found: list[list[Measured]] = [[] for _ in plan.layers]
    with torch.inference_mode():
        loaded = frame.assemble(plan.device, ())
        try:
            values = loaded.bind_inputs({v.name: _example(v) for v in plan.program.inputs})
        except (BriskError, RuntimeError, KeyError, TypeError):
            return found
        for index, planned in enumerate(plan.layers):
            breathe()
            if time.monotonic() > until_s:
                return found
            try:
                found[index], layer = _measure(planned, frame, catalogue, values, byte_ns)
                made = layer.kernel(*[values[slot] for slot in layer.reads])
            except Exception:  # noqa: BLE001  # made-up values may be nonsense to any operator
                return found
            for slot, value in zip(layer.writes, made, strict=True):
                values[slot] = value
            for slot in layer.dead:
                values[slot] = None
    return found


def _measure(
    planned: LayerPlan,
    frame: FramePlan,
    catalogue: Catalogue,
    values: Sequence[Value],
    byte_ns: float,
) -> tuple[list[Measured], LoadedLayer]:
    measured: list[Measured] = []
    layer: LoadedLayer | None = None
    candidates = cold_solutions(planned, catalogue)
    fast = [each for each in candidates if each.name != "reference"] or candidates
    for solution in fast[:MOST_CANDIDATES]:
        chosen = dataclasses.replace(planned, solution=solution)
        ways, layer_of = _measure_one(chosen, frame, catalogue, values, byte_ns)
        measured += ways
        layer = layer or layer_of
    assert layer is not None
    return measured, layer


def _measure_one(
    planned: LayerPlan,
    frame: FramePlan,
    catalogue: Catalogue,
    values: Sequence[Value],
    byte_ns: float,
) -> tuple[list[Measured], LoadedLayer]:
    problem, solution = planned.problem, planned.solution
    started_ns = time.perf_counter_ns()
    weights = solution.transform(problem)
    transformed_ns = time.perf_counter_ns()
    layer = load_layer(planned, frame, catalogue, weights)
    created_ns = time.perf_counter_ns()
    runs = []
    for _ in range(RUNS):
        begun_ns = time.perf_counter_ns()
        layer.kernel(*[values[slot] for slot in layer.reads])
        runs.append(time.perf_counter_ns() - begun_ns)
    create_ns, first_ns, run_ns = created_ns - transformed_ns, runs[0], min(runs[1:])
    raw_bytes = sum(
        operand.constant.nbytes
        for operand in problem.operands
        if operand is not None and operand.constant is not None
    )
    raw_ns = int(raw_bytes * byte_ns) + transformed_ns - started_ns + create_ns
    ways = [_measured(solution, False, raw_ns, first_ns, run_ns, raw_bytes)]
    if solution.transformed_operands(problem) and all(map(can_keep, weights.values())):
        kept_bytes = sum(_size(tensor) for tensor in weights.values())
        kept_ns = int(kept_bytes * byte_ns) + create_ns
        ways.append(_measured(solution, True, kept_ns, first_ns, run_ns, kept_bytes))
    return ways, layer


def _measured(
    solution: Solution, is_cached: bool, prepare_ns: int, first_ns: int, run_ns: int, size: int
) -> Measured:
    candidate = Candidate(solution.name, is_cached, prepare_ns, first_ns, size)
    return Measured(candidate, LayerCosts(prepare_ns, first_ns, run_ns))


def _size(tensor: torch.Tensor) -> int:
    if opaque.is_opaque(tensor):
        return int(torch.ops.mkldnn._nbytes(tensor))
    return tensor.numel() * tensor.element_size()


def _verification_ns_per_byte() -> float:
    sample = np.ones(_SAMPLE_BYTES, np.uint8)
    times = []
    for _ in range(3):
        started_ns = time.perf_counter_ns()
        checksum(sample)
        times.append(time.perf_counter_ns() - started_ns)
    return min(times) / _SAMPLE_BYTES


def _example(variable: Variable) -> torch.Tensor:
    """Made-up values of the variable's type. Raises KeyError where torch does not have it."""
    shape = variable.type.shape or ()
    sizes = [
        size if isinstance(size, int) else 1 if place == 0 else SYMBOLIC_SIZE
        for place, size in enumerate(shape)
    ]
    dtype = TORCH_DTYPES[variable.type.dtype or ""]
    if dtype.is_floating_point:
        return torch.randn(sizes).to(dtype)
    return torch.ones(sizes, dtype=dtype)
