"""Whole models at best-effort priority, for audits: a process of its own.

Reads questions from its standard input (``brisk.runtime.early_exit.audits``) and writes
a line of JSON for each: the classes, or an error in words. Runs on what processors
others leave, on one thread, and ends with the thread that started it, or when nothing was asked
for long.
"""

from __future__ import annotations

import json
import select
import sys
from pathlib import Path
from typing import Any, BinaryIO

from brisk.os_priority import step_aside

# Before what reads the environment for its threads is imported.
if __name__ == "__main__" and not step_aside():
    sys.exit(1)

import numpy as np

from brisk.errors import BriskError, InvalidModelError
from brisk.exits.base_model import BaseModel, load_graph, run_base, taps_of
from brisk.exits.files.artefact import digest_of
from brisk.exits.model_graph import read_graph
from brisk.exits.scores import ScoreForm, Scores

IDLE_END_S = 300.0
MOST_PROGRAMS = 4
"""Models in memory; the one that was asked about first goes."""


def main() -> int:
    """Exit status: 0 where it is needed no more."""
    models = Models()
    given, told = sys.stdin.buffer, sys.stdout.buffer
    while select.select([given], [], [], IDLE_END_S)[0] and (line := given.readline()):
        header = json.loads(line)
        inputs = [_read(given, dtype, shape) for _, dtype, shape in header["inputs"]]
        told.write(json.dumps(models.answer(header, inputs)).encode() + b"\n")
        told.flush()
    return 0


def _read(given: BinaryIO, dtype: str, shape: list[int]) -> np.ndarray:
    array = np.empty(shape, dtype)
    if array.nbytes:
        given.readinto(array.data.cast("B"))  # type: ignore[attr-defined]  # a BufferedReader
    return array


class Models:
    """Loaded models by file, digest and value of the scores."""

    def __init__(self) -> None:
        self._loaded: dict[tuple[str, str, str], BaseModel] = {}

    def answer(self, header: dict[str, Any], arrays: list[np.ndarray]) -> dict[str, Any]:
        """The classes of the rows, or the error."""
        value, position, classes, form = header["scores"]
        scores = Scores(value, position, classes, ScoreForm(form), is_certain=True)
        try:
            base = self._find(header["model"], header["digest"], scores)
            names = [name for name, _, _ in header["inputs"]]
            values = dict(zip(names, arrays, strict=True))
            _, distribution = run_base(base, [], scores, values)
        except (BriskError, OSError) as error:
            return {"error": str(error)}
        return {"classes": distribution.argmax(1).tolist()}

    def _find(self, model: str, digest: str, scores: Scores) -> BaseModel:
        """Raises InvalidModelError where the file is not what was served."""
        key = (model, digest, scores.value)
        if key not in self._loaded:
            if digest_of(Path(model)) != digest:
                raise InvalidModelError("the file has changed since it was loaded")
            if len(self._loaded) >= MOST_PROGRAMS:
                del self._loaded[next(iter(self._loaded))]
            graph = read_graph(Path(model))
            self._loaded[key] = load_graph(graph, 1, taps_of((), scores, graph))
        return self._loaded[key]


if __name__ == "__main__":
    sys.exit(main())
