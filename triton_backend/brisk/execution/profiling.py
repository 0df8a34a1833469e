"""Measuring what each layer's candidates cost on this machine, on one core, layer by layer."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from brisk.artefacts.checksum import checksum
from brisk.errors import BriskError, InternalError
from brisk.execution.artefact import LayerCosts
from brisk.execution.cold_plan import cold_solutions
from brisk.execution.kept import can_keep, tensor_bytes
from brisk.execution.kept_runs import PackedRun
from brisk.execution.loaded_layer import LoadedLayer
from brisk.execution.loading import FramePlan, load_layer
from brisk.execution.plan import LayerPlan, Plan
from brisk.execution.selection import Candidate
from brisk.execution.tables import table_of
from brisk.graph.program import Variable
from brisk.solutions.base import Solution, Value
from brisk.solutions.catalogue import Catalogue
from brisk.solutions.values import TORCH_DTYPES

RUNS = 4
"""Of each candidate; the first makes its primitive and is told apart."""

DOUBT, DOUBT_NS = 1.15, 30_000
"""A kernel that is not the warm one counts as this much slower than measured: by noise alone one
of four would often seem the fastest, and the next requests would pay for it."""

SYMBOLIC_SIZE = 64
"""Stands for sizes that are not known, other than the batch, which is 1."""

MOST_CANDIDATES = 4

MOST_PATIENCE = 5
"""What measuring may take on the clock, as a multiple of its processor time: others' work on the
same processors is no reason for a worse plan."""
_SAMPLE_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class Measured:
    """A candidate with the costs behind it."""

    candidate: Candidate
    costs: LayerCosts


@dataclass(frozen=True, slots=True)
class Profile:
    """``layers``: of each its candidates; none where it could not be run or time ran out.
    ``runs``: by first member.
    """

    layers: list[list[Measured]]
    runs: dict[int, Measured]


def profile(
    plan: Plan,
    runs: Sequence[PackedRun],
    catalogue: Catalogue,
    longest_s: float,
    breathe: Callable[[], None],
) -> Profile:
    """Measure each layer's candidates, and ``runs`` whole.

    ``longest_s``: of the calling thread's processor time. That is what costs are counted in, too,
    as it computes alone: what other processes take of the clock is not the layers'.
    Inputs are made up: random numbers, ones for integers, so a program whose flow depends on
    its values may be measured on another path than it takes.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _profile(plan, runs, catalogue, longest_s, breathe)
    finally:
        torch.set_num_threads(threads)


def _profile(
    plan: Plan,
    runs: Sequence[PackedRun],
    catalogue: Catalogue,
    longest_s: float,
    breathe: Callable[[], None],
) -> Profile:
    used_up_s = time.thread_time() + longest_s
    until_s = time.monotonic() + MOST_PATIENCE * longest_s
    frame = FramePlan.of(plan.program)
    byte_ns = _verification_ns_per_byte()
    run_at = {packed.run.first: packed for packed in runs}
    found = Profile([[] for _ in plan.layers], {})
    with torch.inference_mode():
        loaded = frame.assemble(plan.device, ())
        try:
            values = loaded.bind_inputs({v.name: _example(v) for v in plan.program.inputs})
        except (BriskError, RuntimeError, KeyError, TypeError):
            return found
        for index, planned in enumerate(plan.layers):
            breathe()
            if time.thread_time() > used_up_s or time.monotonic() > until_s:
                return found
            try:
                if index in run_at:
                    found.runs[index] = _measure_run(
                        run_at[index], planned, frame, values, byte_ns
                    )
                found.layers[index], layer = _measure(planned, frame, catalogue, values, byte_ns)
                made = layer.kernel(*[values[slot] for slot in layer.reads])
            except Exception:  # noqa: BLE001  # made-up values may be nonsense to any operator
                return found
            for slot, value in zip(layer.writes, made, strict=True):
                values[slot] = value
            for slot in layer.dead:
                values[slot] = None
    return found


@dataclass(slots=True)
class _Trial:
    """A candidate loaded; ``raw_ns``: its transformation, ``create_ns``: its kernel."""

    solution: Solution
    layer: LoadedLayer
    weights: Mapping[str, torch.Tensor]
    raw_ns: int
    create_ns: int
    runs_ns: list[int] = field(default_factory=list)


def _measure(
    planned: LayerPlan,
    frame: FramePlan,
    catalogue: Catalogue,
    values: Sequence[Value],
    byte_ns: float,
) -> tuple[list[Measured], LoadedLayer]:
    """The candidates' runs take turns, so that all meet the same noise and the same memory."""
    candidates = cold_solutions(planned, catalogue)
    fast = [each for each in candidates if each.name != "reference"] or candidates
    trials = [
        _load(dataclasses.replace(planned, solution=solution), frame, catalogue)
        for solution in fast[:MOST_CANDIDATES]
    ]
    for _ in range(RUNS):
        for trial in trials:
            begun_ns = time.thread_time_ns()
            trial.layer.kernel(*[values[slot] for slot in trial.layer.reads])
            trial.runs_ns.append(time.thread_time_ns() - begun_ns)
    measured = [
        way
        for trial in trials
        for way in _ways(trial, planned, byte_ns, is_desired=trial is trials[0])
    ]
    return measured, trials[0].layer


def _measure_run(
    packed: PackedRun,
    planned: LayerPlan,
    frame: FramePlan,
    values: Sequence[Value],
    byte_ns: float,
) -> Measured:
    """``planned``: its first layer. Raises InternalError where it does not fit ``values``."""
    begun_ns = time.thread_time_ns()
    layer = packed.ready.load(frame.program, frame.slots, planned.solution, _refuse_members)
    create_ns = time.thread_time_ns() - begun_ns
    runs_ns = []
    for _ in range(RUNS):
        begun_ns = time.thread_time_ns()
        layer.kernel(*[values[slot] for slot in layer.reads])
        runs_ns.append(time.thread_time_ns() - begun_ns)
    load_ns, run_ns = int(packed.packed.nbytes * byte_ns) + create_ns, min(runs_ns[1:])
    candidate = Candidate(planned.solution.name, False, load_ns, run_ns, 0)
    return Measured(candidate, LayerCosts(load_ns, runs_ns[0], run_ns))


def _refuse_members() -> Sequence[LoadedLayer]:
    raise InternalError("a run of small layers does not fit the inputs that are made up")


def _load(planned: LayerPlan, frame: FramePlan, catalogue: Catalogue) -> _Trial:
    started_ns = time.thread_time_ns()
    weights = planned.solution.transform(planned.problem)
    transformed_ns = time.thread_time_ns()
    layer = load_layer(planned, frame, catalogue, weights)
    created_ns = time.thread_time_ns()
    return _Trial(
        planned.solution,
        layer,
        weights,
        transformed_ns - started_ns,
        created_ns - transformed_ns,
    )


def _ways(
    trial: _Trial, planned: LayerPlan, byte_ns: float, *, is_desired: bool
) -> list[Measured]:
    """The candidate with raw and, where it can keep them, with kept weights."""
    problem, solution = planned.problem, trial.solution
    run_ns = min(trial.runs_ns[1:])
    planned_ns = run_ns if is_desired else int(run_ns * DOUBT) + DOUBT_NS
    table = table_of(problem)
    raw_bytes = sum(
        operand.constant.nbytes
        for operand in problem.operands
        if operand is not None and operand.constant is not None and operand is not table
    )
    raw_ns = int(raw_bytes * byte_ns) + trial.raw_ns + trial.create_ns
    costs = LayerCosts(raw_ns, trial.runs_ns[0], run_ns)
    ways = [Measured(Candidate(solution.name, False, raw_ns, planned_ns, raw_bytes), costs)]
    weights = trial.weights
    if solution.transformed_operands(problem) and all(map(can_keep, weights.values())):
        size = sum(tensor_bytes(tensor) for tensor in weights.values())
        kept_ns = int(size * byte_ns) + trial.create_ns
        costs = LayerCosts(kept_ns, trial.runs_ns[0], run_ns)
        ways.append(Measured(Candidate(solution.name, True, kept_ns, planned_ns, size), costs))
    return ways


def _verification_ns_per_byte() -> float:
    sample = np.ones(_SAMPLE_BYTES, np.uint8)
    times = []
    for _ in range(3):
        started_ns = time.thread_time_ns()
        checksum(sample)
        times.append(time.thread_time_ns() - started_ns)
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
