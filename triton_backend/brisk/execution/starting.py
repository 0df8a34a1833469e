"""Starting a program: its layers load in lanes while whoever asks already runs it."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from brisk.errors import ArtefactError, InvalidModelError, UnsupportedOperatorError
from brisk.execution.artefact import Artefact, open_artefact
from brisk.execution.engine import slow_reason
from brisk.execution.lanes import Lanes, dealt, executor_threads, lane_count
from brisk.execution.layer_source import LayerSource
from brisk.execution.loading import LoadedProgram
from brisk.execution.machine_costs import read_costs
from brisk.execution.plan import Plan, make_plan
from brisk.execution.reuse import ReusingSource, Search, shared_cache
from brisk.execution.segment_source import SegmentSource
from brisk.execution.sources import ArtefactSource, ModelSource
from brisk.execution.table import GiveWay, LayerTable
from brisk.execution.timeline import EventKind, Recorder, clock_ns
from brisk.graph import read_program
from brisk.segments.engine import Engine
from brisk.segments.library import is_installed
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
        if isinstance(self.source, SegmentSource):
            return False
        return self.artefact is None or self.source.is_given_up

    def threads_now(self, threads: int) -> int:
        """How many of ``threads`` cores the executor computes on at the moment.

        Lanes own theirs until they end: a helper of the executor's that shares a core with a lane
        keeps the other threads of its layer waiting.
        """
        return executor_threads(threads) if self.table.is_loading else threads

    def start_lanes(self, threads: int, give_way: GiveWay | None = None) -> Lanes:
        """Load all layers in the background, on all cores but the executor's."""
        return Lanes(self.table, lane_count(threads), give_way)


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
    engine: Engine = Engine.BRISK,
) -> StartingProgram:
    """Make the model runnable; no layer is loaded yet.

    From ``artefact`` where it is of this model and machine; ``reject`` is told why it is not, now
    or when a layer turns out to be damaged later, and the model file is used instead. ``steals``
    False: lanes keep to their plan. ``engine``: what computes the model, on a CPU. Raises
    InvalidModelError and its kin where the model cannot be served.
    """
    with _without_collections():
        return _started(
            model,
            device,
            threads,
            artefact,
            reject,
            catalogue or default_catalogue(),
            recorder or Recorder(),
            steals=steals,
            engine=engine if device.type == "cpu" else Engine.BRISK,
        )


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """Reading a model makes some 100,000 objects and hardly any that are let go again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


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
    engine: Engine,
) -> StartingProgram:
    started_ns = clock_ns()
    lanes = lane_count(threads)
    opened: Artefact | None = None
    source: LayerSource
    if artefact is not None and engine is not Engine.ONNX_RUNTIME:
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
    elif isinstance(plan := _planned(model, device, threads, catalogue, recorder, engine), Plan):
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
    else:
        source = plan
        queues = dealt(len(plan.segments), lanes)
    count = len(source.frame.program.layers)
    table = LayerTable(count, source.load, queues, recorder, steals=steals)
    if isinstance(source, ReusingSource):
        source.attend(table)
    loaded = source.frame.assemble(device, table)
    recorder.add("parse", EventKind.PARSE, None, started_ns)
    return StartingProgram(loaded, table, source, opened, recorder)


def _planned(
    model: Path,
    device: torch.device,
    threads: int,
    catalogue: Catalogue,
    recorder: Recorder,
    engine: Engine,
) -> Plan | SegmentSource:
    """The plan of Brisk's own kernels, or the segments that ONNX Runtime shall compute.

    Raises InvalidModelError and its kin where neither can.
    """
    if engine is Engine.ONNX_RUNTIME:
        return _segmented(model, threads, recorder)
    has_other = engine is Engine.AUTO and is_installed()
    try:
        plan = make_plan(read_program(model), device, catalogue)
    except UnsupportedOperatorError as error:
        if not has_other:
            raise
        try:
            return _segmented(model, threads, recorder)
        except InvalidModelError as other:
            raise UnsupportedOperatorError(f"{error}; {other}") from other
    if has_other and slow_reason(model, plan) is not None:
        with contextlib.suppress(InvalidModelError):  # what is slow is served all the same
            return _segmented(model, threads, recorder)
    return plan


def _segmented(model: Path, threads: int, recorder: Recorder) -> SegmentSource:
    """Raises InvalidModelError where ONNX Runtime does not take the model."""
    source = SegmentSource(model, threads, recorder)
    source.check()
    return source
