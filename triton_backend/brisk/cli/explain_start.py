"""How a model would start: its artefact's plan with the costs behind it, and a timeline; without
one, what a layer that is waited for would do."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from brisk.execution.artefact import Artefact
    from brisk.execution.plan import Plan

WIDTH = 60
"""Of the drawn timeline, in characters."""


def print_start(console: Console, model: Path, plan: Plan) -> None:
    """The artefact's plan, or why there is none that can be used, and what reuse would do."""
    import torch

    from brisk.errors import ArtefactError
    from brisk.execution.artefact import find_artefact, open_artefact
    from brisk.segments.starting import usable_cores

    device, threads = torch.device("cpu"), usable_cores()
    console.print("start", style="bold")
    path = find_artefact(model, device, threads)
    if path is None:
        console.print("  from the model: there is no artefact for this machine", markup=False)
        _print_reuse(console, plan)
        return
    try:
        artefact = open_artefact(path, model, device, threads)
    except ArtefactError as error:
        console.print(f"  from the model: {error}", markup=False)
        _print_reuse(console, plan)
        return
    console.print(f"  from {path}", markup=False)
    _print_plan(console, artefact)


def _print_reuse(console: Console, plan: Plan) -> None:
    """For each layer that could stand on a substitute, what this machine's costs say of it."""
    from brisk.execution.cold_plan import raw_layer
    from brisk.execution.machine_costs import read_costs
    from brisk.solutions.catalogue import default_catalogue

    catalogue, costs = default_catalogue(), read_costs(plan.device)
    told = 0
    for index, layer in enumerate(plan.layers):
        problem, own = layer.problem, raw_layer(layer, catalogue, costs).solution
        cost = None if own.resident else costs.of(own, problem)
        for other in catalogue.residents():
            spare = costs.of(other, problem)
            knows = (problem.domain, problem.operator) in other.operators()
            if cost is None or spare is None or not knows or not other.check(problem).ok:
                continue
            which = "is substituted" if costs.favours(other, own, problem) else "waits"
            console.print(
                f"  {index:>4} {own.name:<24} load {cost.load / 1e6:6.2f}"
                f" run {cost.run / 1e6:6.2f}; {other.name:<20} {spare.total / 1e6:6.2f}: {which}",
                markup=False,
            )
            told += 1
    if not told:
        console.print(
            "  no substitutes: `brisk prepare` has measured none for its layers on this machine",
            markup=False,
        )


def _print_plan(console: Console, artefact: Artefact) -> None:
    """One line a layer, or a run of layers that the start computes as one: times in milliseconds,
    and when it is prepared and run.
    """
    ready, runs = _predicted(artefact)
    members = Counter(artefact.run_of.values())
    told = -1
    end_ms = max((end for _, end in runs), default=0.0)
    for index, layer in enumerate(artefact.layers):
        name, run = layer.solution, artefact.run_of.get(index)
        if run is not None:
            if run == told:
                continue
            told, name = run, f"run of {members[run]} layers"
        weights = "kept" if run is not None or layer.tensors is not None else "raw"
        lane = "executor" if layer.lane is None else f"load-{layer.lane}"
        later = f", then {layer.warm}" if layer.warm != layer.solution else ""
        costs = layer.costs
        console.print(
            f"  {index:>4} {name:<24} {weights:<4} {lane:<9}"
            f" load {costs.load / 1e6:6.2f} run {costs.first_run / 1e6:6.2f}"
            f" warm {costs.run / 1e6:6.2f} {_bar(ready[index], runs[index], end_ms)}{later}",
            markup=False,
        )
    console.print(f"  predicted: {end_ms:.1f} ms from program to answer", markup=False)


def _predicted(
    artefact: Artefact,
) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """When each layer is loaded and when it runs: (start, end) in ms, as the plan says."""
    lanes: dict[int | None, float] = {}
    loads, runs = [], []
    executor = 0.0
    for layer in artefact.layers:
        load_ms, run_ms = layer.costs.load / 1e6, layer.costs.first_run / 1e6
        begin = executor if layer.lane is None else lanes.get(layer.lane, 0.0)
        loads.append((begin, begin + load_ms))
        if layer.lane is None:
            executor += load_ms
        else:
            lanes[layer.lane] = begin + load_ms
        start = max(executor, begin + load_ms)
        executor = start + run_ms
        runs.append((start, executor))
    return loads, runs


def _bar(load: tuple[float, float], run: tuple[float, float], end_ms: float) -> str:
    """``l`` where the layer is loaded, ``#`` where it runs."""
    cells = [" "] * WIDTH
    for (start, end), mark in ((load, "l"), (run, "#")):
        if end_ms > 0:
            first = min(int(start / end_ms * WIDTH), WIDTH - 1)
            last = min(max(int(end / end_ms * WIDTH), first + 1), WIDTH)
            cells[first:last] = mark * (last - first)
    return "|" + "".join(cells) + "|"
