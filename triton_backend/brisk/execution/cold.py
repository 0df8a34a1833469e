"""A cold start under one of the compared schemes, with a record of what every lane did."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import torch

from brisk.errors import ArtefactError, InvalidConfigurationError
from brisk.execution.frame import Frame
from brisk.execution.layer_source import LayerSource
from brisk.execution.loading import LoadedProgram
from brisk.execution.plan import make_plan
from brisk.execution.reuse import ReusingSource, Search, shared_cache
from brisk.execution.sources import ModelSource
from brisk.execution.starting import StartingProgram, start_program
from brisk.execution.warming import warm_up
from brisk.graph.reader import read_program
from brisk.segments.starting import Lanes, dealt, lane_count, usable_cores
from brisk.segments.table import EXECUTOR, LayerTable
from brisk.segments.timeline import EventKind, Recorder, Timeline, clock_ns
from brisk.solutions.base import Value
from brisk.solutions.catalogue import default_catalogue
from brisk.solutions.categories import CacheStatistics, CategoryCache

SWITCH_INTERVAL_S = 0.0002
"""How long a lane may keep the interpreter from the executor while layers load."""

_CPU = torch.device("cpu")
_NO_STATISTICS = CacheStatistics(0, 0, 0)


class Scheme(str, Enum):
    """``baseline``: parse all, load all, run. ``nnv12``: artefact and pipeline, no reuse.
    ``nnv12_k``: its kernel selection alone, from the model; ``nnv12_kc``: selection and kept
    weights, from the artefact, all loaded and then run. ``nnv12_fixed``: all of it, but lanes keep
    to the plan and steal nothing.

    ``pask_i``: the model's layers interleaved. ``pask_r``: reuse alone, every loaded solution
    searched. ``pask``: both, by category. ``brisk``: artefact, pipeline, stealing, reuse where it
    is quicker. ``ideal``: warm.
    """

    BASELINE = "baseline"
    NNV12_K = "nnv12_k"
    NNV12_KC = "nnv12_kc"
    NNV12_FIXED = "nnv12_fixed"
    NNV12 = "nnv12"
    PASK_I = "pask_i"
    PASK_R = "pask_r"
    PASK = "pask"
    BRISK = "brisk"
    IDEAL = "ideal"


_KEEPING = (Scheme.BRISK, Scheme.NNV12, Scheme.NNV12_FIXED, Scheme.NNV12_KC)
"""Start from an artefact where they are given one."""

_SELECTING = (*_KEEPING, Scheme.NNV12_K)
"""Take kernels that suit a start, others the warm ones."""

_SEQUENTIAL = (Scheme.BASELINE, Scheme.IDEAL, Scheme.NNV12_K, Scheme.NNV12_KC)
"""Load every layer before the first runs."""


@dataclass(frozen=True, slots=True)
class ColdStatistics:
    """Of the first answer. ``milestone``: PASK III-A's; None: never reached.

    ``queries``, ``hits`` and ``lookups`` are GetSubSolution's. ``reused``: layers that ran on a
    substitute; ``waited``: that had one which by its costs was no gain. ``loaded``: layers whose
    own solution was loaded. ``stolen``: layers loaded by another than the lane meant for it.
    ``cached_layers``: with weights from the artefact as the kernel takes them.
    """

    scheme: str
    layers: int
    milestone: int | None
    queries: int
    hits: int
    lookups: int
    reused: int
    waited: int
    loaded: int
    stolen: int
    from_artefact: bool
    cached_layers: int


class ColdStart:
    """A started program; belongs to the thread that started it."""

    def __init__(
        self,
        starting: StartingProgram,
        lanes: Lanes | None,
        threads: int,
        outputs: Mapping[str, Value],
        timeline: Timeline,
        statistics: ColdStatistics,
    ) -> None:
        self.outputs = dict(outputs)
        self.timeline = timeline
        self.statistics = statistics
        self._starting = starting
        self._lanes = lanes
        self._threads = threads

    def run(self, inputs: Mapping[str, Value]) -> dict[str, Value]:
        """The next inference, with whatever is loaded by now."""
        return _run(self._starting, inputs, self._threads, is_recorded=False)

    def settle(self) -> None:
        """Load the warm solutions, as the runtime does between requests, and switch to them."""
        with torch.inference_mode():
            warm_up(self._starting, lambda: True)

    def close(self) -> None:
        """End the lanes."""
        if self._lanes is not None:
            self._lanes.close()


def start(
    path: Path,
    scheme: Scheme | str,
    inputs: Mapping[str, Value],
    device: torch.device = _CPU,
    threads: int = 0,
    artefact: Path | None = None,
) -> ColdStart:
    """Start the model at ``path`` and run it once.

    ``threads``: cores for executor and lanes together; 0: all usable ones. ``artefact``: a file
    that ``prepare`` made, for the schemes that use one. Raises InvalidModelError and its kin,
    and InvalidConfigurationError where there is no such scheme.
    """
    try:
        scheme = Scheme(scheme)
    except ValueError as error:
        known = ", ".join(each.value for each in Scheme)
        raise InvalidConfigurationError(f"no scheme '{scheme}'; known are {known}") from error
    threads = threads or usable_cores()
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        return _start(path, scheme, inputs, device, threads, artefact)
    finally:
        sys.setswitchinterval(before_s)


def _start(
    path: Path,
    scheme: Scheme,
    inputs: Mapping[str, Value],
    device: torch.device,
    threads: int,
    artefact: Path | None,
) -> ColdStart:
    recorder, cache = Recorder(), CategoryCache(default_catalogue().residents())
    if scheme is Scheme.BRISK:
        cache = shared_cache()
    before = cache.statistics()
    uses_artefact = scheme in _KEEPING and artefact is not None
    if uses_artefact or scheme is Scheme.BRISK:
        steals = scheme is not Scheme.NNV12_FIXED
        starting = start_program(
            path,
            device,
            threads,
            artefact if uses_artefact else None,
            _refuse,
            recorder=recorder,
            steals=steals,
        )
    else:
        starting = _from_model(path, scheme, device, threads, cache, recorder)
    lanes = None
    if scheme in _SEQUENTIAL:
        torch.set_num_threads(threads)
        with torch.inference_mode():
            for lane in range(lane_count(threads)):
                starting.table.work(lane, f"load-{lane}")
    elif scheme is not Scheme.PASK_R:
        lanes = starting.start_lanes(threads)
    if scheme is Scheme.IDEAL:
        for _ in range(3):
            _run(starting, inputs, threads, is_recorded=False)
        recorder = Recorder()
        starting = StartingProgram(
            starting.loaded, starting.table, starting.source, starting.artefact, recorder
        )
    outputs = _run(starting, inputs, threads, is_recorded=True)
    timeline = recorder.timeline(clock_ns())
    return ColdStart(
        starting,
        lanes,
        threads,
        outputs,
        timeline,
        _statistics(scheme, starting, cache.statistics().since(before)),
    )


def _refuse(error: ArtefactError) -> None:
    raise error


def _from_model(
    path: Path,
    scheme: Scheme,
    device: torch.device,
    threads: int,
    cache: CategoryCache,
    recorder: Recorder,
) -> StartingProgram:
    catalogue = default_catalogue()
    started_ns = clock_ns()
    plan = make_plan(read_program(path), device, catalogue)
    is_ours = scheme in _SELECTING
    source: LayerSource
    source = model = ModelSource(plan, catalogue, recorder, is_cold=is_ours)
    if scheme is Scheme.PASK:
        source = ReusingSource(model, cache, Search.CATEGORY, catalogue, recorder)
    elif scheme is Scheme.PASK_R:
        source = ReusingSource(
            model, cache, Search.EXHAUSTIVE, catalogue, recorder, from_the_start=True
        )
    queues = dealt(len(plan.layers), lane_count(threads))
    steals = (is_ours or scheme is Scheme.PASK_R) and scheme is not Scheme.NNV12_FIXED
    table = LayerTable(len(plan.layers), source.load, queues, recorder, steals=steals)
    if isinstance(source, ReusingSource):
        source.attend(table)
    loaded: LoadedProgram = source.frame.assemble(device, table)
    recorder.add("parse", EventKind.PARSE, None, started_ns)
    return StartingProgram(loaded, table, source, None, recorder)


def _run(
    starting: StartingProgram, inputs: Mapping[str, Value], threads: int, *, is_recorded: bool
) -> dict[str, Value]:
    """One inference, on as many cores as lanes leave."""
    table = starting.table
    with torch.inference_mode():
        frame = Frame(starting.loaded, inputs)
        is_whole = table.is_whole
        while not frame.is_finished:
            position = frame.position
            if not is_whole:
                table[position]  # wait, or load it here
            _use(threads if is_whole else starting.threads_now(threads))
            started_ns = clock_ns()
            frame.step()
            if is_recorded:
                starting.recorder.add(EXECUTOR, EventKind.RUN, position, started_ns)
        return frame.results()


def _use(threads: int) -> None:
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


def _statistics(
    scheme: Scheme, starting: StartingProgram, searched: CacheStatistics
) -> ColdStatistics:
    source, kept = starting.source, starting.artefact
    reusing = source if isinstance(source, ReusingSource) else None
    seen = searched if reusing is not None else _NO_STATISTICS
    reused = 0 if reusing is None else reusing.reused
    count = len(starting.table)
    return ColdStatistics(
        scheme=scheme.value,
        layers=count,
        milestone=None if reusing is None else reusing.milestone,
        queries=seen.queries,
        hits=seen.hits,
        lookups=seen.lookups,
        reused=reused,
        waited=0 if reusing is None else reusing.waited,
        loaded=count - reused,
        stolen=starting.table.stolen,
        from_artefact=kept is not None,
        cached_layers=0
        if kept is None
        else sum(layer.tensors is not None for layer in kept.layers),
    )
