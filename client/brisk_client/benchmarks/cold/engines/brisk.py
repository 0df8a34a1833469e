"""Brisk's executor in this process: serial, and by every scheme of the cold-start papers."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import numpy as np

from brisk_client.benchmarks.cold.engines.base import Arrays, ColdEngine, Start

COLD, PREPARATION = "brisk.execution.cold", "brisk.execution.preparation"
"""By name: a runtime without them still has its serial loader measured."""


class BriskSerial(ColdEngine):
    """The simple path: read all, load all in one thread, then run. The oracle of the rest."""

    name = "brisk serial"

    def import_libraries(self) -> None:
        import torch  # noqa: F401

        from brisk.solutions.catalogue import default_catalogue

        default_catalogue()

    def start(self, model: Path, prepared: Path | None, inputs: Arrays, threads: int) -> Start:
        import torch

        from brisk.execution import load_program, run_serially
        from brisk.graph import read_program
        from brisk.solutions.values import from_numpy, to_numpy

        torch.set_num_threads(threads)
        device = torch.device("cpu")
        loaded = load_program(read_program(model), device)

        def infer() -> list[np.ndarray]:
            values = {name: from_numpy(array, device) for name, array in inputs.items()}
            return [to_numpy(value) for value in run_serially(loaded, values).values()]

        return Start(infer(), infer)


class BriskScheme(ColdEngine):
    """A scheme of ``brisk.execution.cold``; ``prepared`` ones start from an artefact."""

    def __init__(self, scheme: str, *, has_artefact: bool, name: str = "") -> None:
        self.name = name or f"brisk {scheme}"
        self._scheme = scheme
        self.prepares = has_artefact

    def import_libraries(self) -> None:
        BriskSerial().import_libraries()
        importlib.import_module(COLD)

    def prepare(self, model: Path, folder: Path, inputs: Arrays, threads: int) -> Path:
        prepare = importlib.import_module(PREPARATION).prepare
        target = folder / f"brisk-{threads}"
        target.mkdir(exist_ok=True)
        return Path(prepare(model, threads=threads, directory=target).path)

    def start(self, model: Path, prepared: Path | None, inputs: Arrays, threads: int) -> Start:
        import torch

        from brisk.solutions.values import from_numpy, to_numpy

        start = importlib.import_module(COLD).start
        device = torch.device("cpu")

        def values() -> dict[str, Any]:
            return {name: from_numpy(array, device) for name, array in inputs.items()}

        begun = start(model, self._scheme, values(), device, threads, prepared)
        outputs = [to_numpy(value) for value in begun.outputs.values()]
        details = {
            "statistics": dataclasses.asdict(begun.statistics),
            "timeline": [
                {
                    **dataclasses.asdict(event),
                    "kind": str(getattr(event.kind, "value", event.kind)),
                }
                for event in begun.timeline.events
            ],
            "started_ns": begun.timeline.started_ns,
            "answered_ns": begun.timeline.answered_ns,
        }
        return Start(outputs, lambda: begun.run(values()), begun.settle, details)
