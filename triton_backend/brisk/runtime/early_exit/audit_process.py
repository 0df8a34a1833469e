"""Whole models at best-effort priority, for audits: a process of its own.

Reads pickled questions from its standard input, which the worker that started it alone writes
(``brisk.runtime.early_exit.audits``), and writes a line of JSON for each: whether the rows'
answers count as the model's own, or an error in words. Runs on what processors others leave, on
one thread, and ends with the thread that started it, or when nothing was asked for long.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import select
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from brisk.os_priority import step_aside

# Before what reads the environment for its threads is imported.
if __name__ == "__main__" and not step_aside():
    sys.exit(1)

import numpy as np

from brisk.errors import BriskError, InvalidModelError
from brisk.exits.base_model import BaseModel, answers_of, load_graph, taps_of
from brisk.exits.cascade_file import digest_of
from brisk.exits.model_graph import read_graph
from brisk.exits.scores import Scores, all_agreeing

IDLE_END_S = 300.0
MOST_PROGRAMS = 4
"""Models in memory; the one that was asked about first goes."""


def main() -> int:
    """Exit status: 0 where it is needed no more."""
    models = Models()
    given, told = sys.stdin.buffer, sys.stdout.buffer
    with contextlib.suppress(EOFError):
        while select.select([given], [], [], IDLE_END_S)[0]:
            told.write(json.dumps(models.answer(*pickle.load(given))).encode() + b"\n")
            told.flush()
    return 0


class Models:
    """Loaded models by file, digest and value of the scores."""

    def __init__(self) -> None:
        self._loaded: dict[tuple[Path, str, str], BaseModel] = {}

    def answer(
        self,
        model: Path,
        digest: str,
        scores: Scores,
        inputs: Mapping[str, np.ndarray],
        answers: Sequence[np.ndarray],
    ) -> list[bool] | str:
        """Of each row whether ``answers`` agree with the model, or the error."""
        try:
            own = answers_of(self._find(model, digest, scores), scores, inputs)
        except (BriskError, OSError) as error:
            return str(error)
        agrees: list[bool] = all_agreeing(answers, own, scores).tolist()
        return agrees

    def _find(self, model: Path, digest: str, scores: Scores) -> BaseModel:
        """Raises InvalidModelError where the file is not what was served."""
        key = (model, digest, scores.value)
        if key not in self._loaded:
            if digest_of(model) != digest:
                raise InvalidModelError("the file has changed since it was loaded")
            if len(self._loaded) >= MOST_PROGRAMS:
                del self._loaded[next(iter(self._loaded))]
            graph = read_graph(model)
            self._loaded[key] = load_graph(graph, 1, taps_of((), scores, graph))
        return self._loaded[key]


if __name__ == "__main__":
    sys.exit(main())
