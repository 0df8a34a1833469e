"""Brisk's executor in this process: serial, and by the schemes of the cold-start papers."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from brisk_client.benchmarks.cold.engines.base import Arrays, ColdEngine, Start

if TYPE_CHECKING:
    from brisk.execution.cold import ColdStart


class BriskSerial(ColdEngine):
    """The simple path: read all, load all in one thread, then run. The oracle of the rest."""

    name = "brisk serial"

    def import_libraries(self) -> None:
        import brisk.execution.cold  # noqa: F401
        from brisk.runtime.ready import import_everything
        from brisk.segments.engine import Engine

        import_everything("cpu", Engine.BRISK)

    def begin(self, threads: int) -> None:
        """Helper threads and memory, as ``brisk.runtime.worker_process`` takes them at a worker's
        start, and what an idle worker practises (``brisk.runtime.loader``): its own unrelated
        network, from the file and from an artefact."""
        from brisk.execution.ahead import take_ahead
        from brisk.execution.heap import reserve
        from brisk.execution.practice import practise

        take_ahead(threads, reserve())
        thread = threading.Thread(target=practise, args=(threads,))
        thread.start()
        thread.join()

    def start(self, model: Path, prepared: Path | None, inputs: Arrays, threads: int) -> Start:
        import torch

        from brisk.execution.loading import load_program
        from brisk.execution.serial import run_serially
        from brisk.graph.reader import read_program
        from brisk.solutions.values import from_numpy, to_numpy

        torch.set_num_threads(threads)
        device = torch.device("cpu")
        loaded = load_program(read_program(model), device)

        def infer() -> list[np.ndarray]:
            values = {name: from_numpy(array, device) for name, array in inputs.items()}
            return [to_numpy(value) for value in run_serially(loaded, values).values()]

        return Start(infer(), infer)


class BriskScheme(ColdEngine):
    """A scheme of ``brisk.execution.cold``, from an artefact or from the ONNX file."""

    def __init__(self, scheme: str, *, has_artefact: bool, name: str = "") -> None:
        self.name = name or f"brisk {scheme}"
        self.prepares = has_artefact
        self._scheme = scheme

    def import_libraries(self) -> None:
        BriskSerial().import_libraries()

    def begin(self, threads: int) -> None:
        BriskSerial().begin(threads)

    def prepare(self, model: Path, folder: Path, inputs: Arrays, threads: int) -> Path:
        import torch

        from brisk.errors import ArtefactError
        from brisk.execution.artefact import open_artefact
        from brisk.execution.preparation import prepare

        device, target = torch.device("cpu"), folder / f"brisk-{threads}"
        target.mkdir(exist_ok=True)
        for present in sorted(target.glob("*.artefact")):
            try:
                open_artefact(present, model, device, threads)
            except ArtefactError:
                continue  # of another version of Brisk, or of the model
            return present
        return Path(prepare(model, device, threads, target).path)

    def start(self, model: Path, prepared: Path | None, inputs: Arrays, threads: int) -> Start:
        import torch

        from brisk.execution.cold import start
        from brisk.solutions.values import from_numpy, to_numpy

        device = torch.device("cpu")

        def values() -> dict[str, Any]:
            return {name: from_numpy(array, device) for name, array in inputs.items()}

        begun = start(model, self._scheme, values(), device, threads, prepared)
        outputs = [to_numpy(value) for value in begun.outputs.values()]
        timeline = begun.timeline
        warm_s = (timeline.answered_ns - timeline.started_ns) / 1e9
        return Start(
            outputs,
            lambda: [to_numpy(value) for value in begun.run(values()).values()],
            begun.settle,
            lambda: _details(begun),
            warm_s if self._scheme == "ideal" else None,
        )


def _details(begun: ColdStart) -> dict[str, Any]:
    timeline = begun.timeline
    return {
        "statistics": dataclasses.asdict(begun.statistics),
        "timeline": [
            {**dataclasses.asdict(event), "kind": event.kind.value} for event in timeline.events
        ],
        "started_ns": timeline.started_ns,
        "answered_ns": timeline.answered_ns,
    }
