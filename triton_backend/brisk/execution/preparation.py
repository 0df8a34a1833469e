"""Preparing a model: its artefact made and published once, whoever else tries meanwhile."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from brisk.artefacts import store
from brisk.artefacts.identity import identify, model_files, stamps
from brisk.compiled.library import wait_until_settled
from brisk.errors import ArtefactError, InvalidModelError, UnavailableError
from brisk.execution.artefact import UNMEASURED, find_artefact, open_artefact
from brisk.execution.building import ColdLayer, default_layers, publish_artefact
from brisk.execution.cold_plan import cold_plan
from brisk.execution.disk_budget import within_budget
from brisk.execution.joining import drawn_runs
from brisk.execution.kept_runs import PackedRun, packed_runs
from brisk.execution.machine_costs import read_costs, write_costs
from brisk.execution.plan import Plan, make_plan
from brisk.execution.profiling import Measured, profile
from brisk.execution.runs import DrawnRun
from brisk.execution.selection import Candidate, Schedule, schedule, select
from brisk.graph.reader import read_program
from brisk.segments.starting import lane_count
from brisk.solutions.catalogue import Catalogue, default_catalogue

DISK_FACTOR = 3.0
"""Default of what weights for starts may take on disk, as a multiple of the model's weights. At 2
a U-Net's widest layers were transformed at each start, into memory that the kernel had to give."""

TAKEOVER = 0.4
"""What each processor adds to the executor's speed when its lane has ended: ResNet-50 and the
encoder ran 1.4 to 1.45 times as fast on two processors as on one."""

LONGEST_PROFILE_S = 6.0
"""Of processor time, after which layers not yet measured get the default plan."""


@dataclass(frozen=True, slots=True)
class Preparation:
    """``path``: the published artefact. ``layers``: what it holds of each layer of ``plan``.

    ``schedule``: of the start, as predicted from measured costs; None where none were measured.
    """

    path: Path
    plan: Plan
    layers: tuple[ColdLayer, ...]
    schedule: Schedule | None
    seconds: float


def is_prepared(model: Path, device: torch.device, threads: int) -> bool:
    """Whether the model has an artefact for this machine that is sound in every byte.

    Waits for the compiled library, as ``prepare`` does.
    """
    wait_until_settled()
    path = find_artefact(model, device, threads)
    if path is None:
        return False
    try:
        container = open_artefact(path, model, device, threads).container
        for number in range(len(container)):
            container.verify(number)
    except ArtefactError:
        return False
    return True


def _do_nothing() -> None:
    return None


def prepare(
    model: Path,
    device: torch.device,
    threads: int,
    directory: Path | None = None,
    breathe: Callable[[], None] = _do_nothing,
    disk_factor: float = DISK_FACTOR,
    catalogue: Catalogue | None = None,
    *,
    is_measured: bool = True,
) -> Preparation:
    """Make the model's artefact for this machine.

    ``directory``: where to; None: in the cache directory. ``breathe`` is called
    between steps of some milliseconds. ``disk_factor``: what weights for the start may take, as
    a multiple of the model's. ``is_measured`` False: by default rules, for machines that are too
    busy to measure anything. Raises OSError where nothing can be written,
    UnavailableError where another process is at it, InvalidModelError where the model cannot be
    served or changes meanwhile.
    """
    started_s = time.monotonic()
    wait_until_settled()  # else the artefact would be one of a process without the library
    catalogue = catalogue or default_catalogue()
    target = directory or store.writable_directory(model)
    with store.building(target) as is_ours:
        if not is_ours:
            raise UnavailableError(f"{target}: another process prepares this model")
        home = model.resolve().parent
        names = model_files(model)
        before = stamps(home, names)
        identity = identify(home, names)
        breathe()
        plan = make_plan(read_program(model), device, catalogue)
        budget = int(disk_factor * sum(array.nbytes for array in plan.program.weights.values()))
        lanes = lane_count(threads)
        runs = drawn_runs(plan.program, plan.layers)
        packed = packed_runs(runs, plan.layers, budget)
        layers, planned = _planned_layers(
            plan, runs, packed, catalogue, lanes, budget, breathe, is_measured=is_measured
        )
        path = publish_artefact(model, plan, layers, threads, identity, target, breathe, packed)
        if stamps(home, names) != before:
            path.unlink(missing_ok=True)
            raise InvalidModelError(f"{model} has changed while it was prepared")
        store.note_state(path, identity, before)
    return Preparation(path, plan, tuple(layers), planned, time.monotonic() - started_s)


def _planned_layers(
    plan: Plan,
    runs: Sequence[DrawnRun],
    packed: Sequence[PackedRun],
    catalogue: Catalogue,
    lanes: int,
    disk_bytes: int,
    breathe: Callable[[], None],
    *,
    is_measured: bool,
) -> tuple[list[ColdLayer], Schedule | None]:
    """The layers as measured costs choose them; by default rules where they cannot be measured."""
    disk_bytes -= sum(each.packed.nbytes for each in packed)
    layers = default_layers(cold_plan(plan, catalogue), plan, lanes, runs)
    joined = {place for each in packed for place in each.run.places}
    if not is_measured:
        return within_budget(layers, catalogue, disk_bytes, breathe, joined), None
    measured = profile(plan, packed, catalogue, LONGEST_PROFILE_S, breathe)
    _pool(plan, measured.layers)
    if not all(measured.layers):
        return within_budget(layers, catalogue, disk_bytes, breathe, joined), None
    options = [_allowed(each, layer) for each, layer in zip(measured.layers, layers, strict=True)]
    for place in joined:
        options[place] = [_joined(layers[place], measured.runs.get(place))]
    candidates = [_weighed(each) for each in options]
    alone = 1.0 + TAKEOVER * lanes
    chosen, _ = select(candidates, [1.0] * lanes, disk_bytes, alone)
    found = [
        each[weighed.index(choice)]
        for each, weighed, choice in zip(options, candidates, chosen, strict=True)
    ]
    made = schedule([one.candidate for one in found], [1.0] * lanes, alone)
    lane_of = {index: lane for lane, queue in enumerate(made.lanes) for index in queue}
    planned = [
        _chosen_layer(layer, one, catalogue, lane_of.get(index))
        for index, (layer, one) in enumerate(zip(layers, found, strict=True))
    ]
    return planned, made


def _joined(layer: ColdLayer, run: Measured | None) -> Measured:
    """A layer that is part of a run: the first one has the costs of ``run``, the others none."""
    name, is_cached = layer.solution.name, layer.cached
    if run is None:
        return Measured(Candidate(name, is_cached, 0, 0, 0), UNMEASURED)
    candidate = dataclasses.replace(run.candidate, solution=name, is_cached=is_cached)
    return Measured(candidate, run.costs)


def _pool(plan: Plan, measured: Sequence[Sequence[Measured]]) -> None:
    """Let starts of other models on this machine know what was measured, raw weights only."""
    found = [
        (way.candidate.solution, planned.problem, way.costs.load, way.costs.first_run)
        for planned, ways in zip(plan.layers, measured, strict=True)
        for way in ways
        if not way.candidate.is_cached
    ]
    write_costs(read_costs(plan.device).pooled(found), plan.device)


def _weighed(measured: Sequence[Measured]) -> list[Candidate]:
    """The candidates, with what each would cost the second answer added to its first run."""
    fastest_ns = min(one.costs.run for one in measured)
    return [
        dataclasses.replace(
            one.candidate, run_ns=one.candidate.run_ns + one.costs.run - fastest_ns
        )
        for one in measured
    ]


def _allowed(measured: Sequence[Measured], default: ColdLayer) -> list[Measured]:
    """Layers that a run of small ones will take over keep their raw weights."""
    raw = [one for one in measured if not one.candidate.is_cached]
    has_cached = bool(default.solution.transformed_operands(default.problem))
    return raw if has_cached and not default.cached else list(measured)


def _chosen_layer(
    layer: ColdLayer,
    chosen: Measured,
    catalogue: Catalogue,
    lane: int | None,
) -> ColdLayer:
    candidate = chosen.candidate
    solution = catalogue.named(candidate.solution)
    assert solution is not None
    return dataclasses.replace(
        layer, solution=solution, cached=candidate.is_cached, lane=lane, costs=chosen.costs
    )
