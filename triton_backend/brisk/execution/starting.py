"""Starting a program: its layers load in lanes while whoever asks already runs it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from brisk.execution.loading import LoadedLayer, LoadedProgram, ProgramLoader
from brisk.execution.plan import ExecutionPlan, make_plan
from brisk.graph.reader import read_program
from brisk.segments.starting import start_lanes, without_collections
from brisk.segments.table import GiveWay, LayerTable
from brisk.segments.timeline import EventKind, clock_ns
from brisk.solutions.catalogue import default_catalogue


@dataclass(frozen=True, slots=True)
class StartingProgram:
    """A program that can run at once, as ``plan`` says."""

    plan: ExecutionPlan
    loaded: LoadedProgram
    table: LayerTable[LoadedLayer]

    def start_lanes(self, threads: int, give_way: GiveWay | None = None) -> list[threading.Thread]:
        """Load all layers in the background, on all cores but the executor's."""
        return start_lanes(self.table, threads, give_way, _remembering_nothing)


def start_program(model: Path, device: torch.device) -> StartingProgram:
    """Make the model runnable; no layer is loaded yet.

    Raises InvalidModelError and its kin where the model cannot be served.
    """
    catalogue = default_catalogue()
    started_ns = clock_ns()
    with without_collections():
        plan = make_plan(read_program(model), device, catalogue)
    loader = ProgramLoader(plan, catalogue)
    table = LayerTable(len(plan.layers), loader.layer)
    table.recorder.add("parse", EventKind.PARSE, None, started_ns)
    return StartingProgram(plan, loader.program(table), table)


@contextlib.contextmanager
def _remembering_nothing() -> Iterator[None]:
    with torch.inference_mode():
        yield
