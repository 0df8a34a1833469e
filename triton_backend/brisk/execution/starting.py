"""Starting a program: its layers load in lanes while whoever asks already runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from brisk.errors import ArtefactError
from brisk.execution.artefact import Artefact, open_artefact
from brisk.execution.lanes import alone, executor_threads
from brisk.execution.layer_source import LayerSource
from brisk.execution.loading import LoadedProgram
from brisk.execution.machine_costs import read_costs
from brisk.execution.plan import make_plan
from brisk.execution.reuse import ReusingSource, Search, shared_cache
from brisk.execution.sources import ArtefactSource, ModelSource
from brisk.graph.reader import read_program
from brisk.segments.starting import Lanes, dealt, lane_count, without_collections
from brisk.segments.table import GiveWay, LayerTable
from brisk.segments.timeline import EventKind, Recorder, clock_ns
from brisk.solutions.catalogue import Catalogue, default_catalogue


@dataclass(frozen=True, slots=True)
class StartingProgram:
    """A program that can run at once. ``artefact``: what it is loaded from; None: the model."""

    loaded: LoadedProgram
    table: LayerTable
    source: LayerSource
    artefact: Artefact | None
    recorder: Recorder

    @property
    def wants_artefact(self) -> bool:
        """Whether there was none that could be used, to the end, and one could be made."""
        return self.artefact is None or self.source.is_given_up

    def threads_now(self, threads: int) -> int:
        """How many of ``threads`` cores the executor computes on at the moment.

        Lanes own theirs until they end: a helper of the executor's that shares a core with a lane
        keeps the other threads of its layer waiting.
        """
        return executor_threads(threads) if self.table.is_loading else threads

    def start_lanes(self, threads: int, give_way: GiveWay | None = None) -> Lanes:
        """Load all layers in the background, on all cores but the executor's."""
        return Lanes(self.table, lane_count(threads), give_way, alone)


def start_program(
    model: Path,
    device: torch.device,
    threads: int,
    artefact: Path | None,
    reject: Callable[[ArtefactError], None],
    catalogue: Catalogue | None = None,
    recorder: Recorder | None = None,
    *,
    steals: bool = True,
) -> StartingProgram:
    """Make the model runnable; no layer is loaded yet.

    From ``artefact`` where it is of this model and machine; ``reject`` is told why it is not, now
    or when a layer turns out to be damaged later, and the model file is used instead. ``steals``
    False: lanes keep to their plan. Raises InvalidModelError and its kin where the model cannot
    be served.
    """
    with without_collections():
        return _started(
            model,
            device,
            threads,
            artefact,
            reject,
            catalogue or default_catalogue(),
            recorder or Recorder(),
            steals=steals,
        )


def _started(
    model: Path,
    device: torch.device,
    threads: int,
    artefact: Path | None,
    reject: Callable[[ArtefactError], None],
    catalogue: Catalogue,
    recorder: Recorder,
    *,
    steals: bool,
) -> StartingProgram:
    started_ns = clock_ns()
    lanes = lane_count(threads)
    opened: Artefact | None = None
    source: LayerSource
    if artefact is not None:
        try:
            opened = open_artefact(artefact, model, device, threads)
        except ArtefactError as error:
            reject(error)
    if opened is not None:
        source = ArtefactSource(opened, model, device, catalogue, recorder, reject)
        queues: list[list[int]] = [[] for _ in range(lanes)]
        for index, layer in enumerate(opened.layers):
            if layer.lane is not None:
                queues[layer.lane % lanes].append(index)
    else:
        plan = make_plan(read_program(model), device, catalogue)
        costs = read_costs(device)
        source = ReusingSource(
            ModelSource(plan, catalogue, recorder, costs=costs),
            shared_cache(),
            Search.CATEGORY,
            catalogue,
            recorder,
            costs,
        )
        queues = dealt(len(plan.layers), lanes)
    count = len(source.frame.program.layers)
    table = LayerTable(count, source.load, queues, recorder, steals=steals)
    if isinstance(source, ReusingSource):
        source.attend(table)
    loaded = source.frame.assemble(device, table)
    recorder.add("parse", EventKind.PARSE, None, started_ns)
    return StartingProgram(loaded, table, source, opened, recorder)
