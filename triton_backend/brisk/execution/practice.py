"""Starting a small network before any model comes, so that a model's start is not the first.

The first start of a process takes twice the Python code's time: pages that the fork shares are
copied when their objects are first touched (some 2000 faults), code is read from memory, and the
libraries make what they keep. A worker that has nothing to do yet goes through it once.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from brisk.artefacts.identity import identify
from brisk.errors import ArtefactError
from brisk.execution.building import default_layers, draw_up
from brisk.execution.cold_plan import cold_plan
from brisk.execution.frame import Frame
from brisk.execution.joining import drawn_runs
from brisk.execution.kept_runs import packed_runs
from brisk.execution.lanes import compute_alone
from brisk.execution.plan import make_plan
from brisk.execution.practice_network import build_practice, practice_inputs
from brisk.execution.starting import start_program
from brisk.graph.reader import read_program
from brisk.segments.starting import lane_count
from brisk.solutions.catalogue import default_catalogue
from brisk.solutions.values import from_numpy

_CPU = torch.device("cpu")
_RUN_BYTES = 1 << 24
"""More than the network's runs have of weights."""


@torch.inference_mode()
def practise(threads: int) -> None:
    """Start the network from its file and from an artefact, and run it.

    In this thread alone, which gives its parallel operations one thread from then on. ``threads``:
    of later starts. Raises OSError where no temporary file can be written.
    """
    compute_alone()
    catalogue = default_catalogue()
    with tempfile.TemporaryDirectory(prefix="brisk-practice-") as folder:
        model = Path(folder) / "model.onnx"
        model.write_bytes(build_practice().SerializeToString())
        plan = make_plan(read_program(model), _CPU, catalogue)
        runs = drawn_runs(plan.program, plan.layers)
        layers = default_layers(cold_plan(plan, catalogue), plan, lane_count(threads), runs)
        identity = identify(model.parent, (model.name,))
        artefact = model.with_suffix(".artefact")
        packed = packed_runs(runs, plan.layers, _RUN_BYTES)
        with artefact.open("wb") as file:
            draw_up(plan, layers, threads, identity, runs=packed)(file)
        for prepared in (None, artefact):
            _start(model, threads, prepared)


def _start(model: Path, threads: int, artefact: Path | None) -> None:
    starting = start_program(model, _CPU, threads, artefact, _fail)
    inputs = {name: from_numpy(array, _CPU) for name, array in practice_inputs().items()}
    frame = Frame(starting.loaded, inputs)
    while not frame.step():
        pass
    frame.results()


def _fail(error: ArtefactError) -> None:
    raise error
