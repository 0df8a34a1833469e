"""The process that runs whole models at the lowest priority, for audits.

It reads pickled questions from its standard input, to which only the worker that started it writes
(``brisk.runtime.early_exit.audits``), and writes a line of JSON for each: whether the rows'
answers count as the model's own, or an error as text. It runs on one thread, and ends with the
thread that started it, or after ``IDLE_END_S`` without a question.
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

# Before the imports of libraries that read the number of threads from the environment.
if __name__ == "__main__" and not step_aside():
    sys.exit(1)

import numpy as np

from brisk.errors import BriskError, InvalidModelError
from brisk.exits.base_model import BaseModel, answers_of, load_graph, taps_of
from brisk.exits.cascade_file import unchanged
from brisk.exits.model_graph import read_graph
from brisk.exits.scores import Scores, all_agreeing
from brisk.paths import Stamp, stamp_of

IDLE_END_S = 300.0
MOST_PROGRAMS = 4
"""The most models in memory; the one that was loaded first is dropped."""


def main() -> int:
    """Answer questions until the process is no longer needed; return the exit status 0."""
    models = Models()
    questions, verdicts = sys.stdin.buffer, sys.stdout.buffer
    with contextlib.suppress(EOFError):
        while select.select([questions], [], [], IDLE_END_S)[0]:
            verdict = models.answer(*pickle.load(questions))
            verdicts.write(json.dumps(verdict).encode() + b"\n")
            verdicts.flush()
    return 0


class Models:
    """The loaded models by file, digest and value of the scores."""

    def __init__(self) -> None:
        self._loaded: dict[tuple[Path, str, str], BaseModel] = {}
        self._others: dict[tuple[Path, str], _Stamps] = {}
        """By file and digest, the files beside a model that was found to be of another digest."""

    def answer(
        self,
        model: Path,
        digest: str,
        scores: Scores,
        inputs: Mapping[str, np.ndarray],
        answers: Sequence[np.ndarray],
    ) -> list[bool] | str:
        """Return for each row whether ``answers`` agree with the model, or the error as text.

        Nothing is returned where the model was found to be another one before: it is not read
        again until a file beside it changes.
        """
        try:
            base = self._find(model, digest, scores)
            if base is None:
                return []
            own = answers_of(base, scores, inputs)
        except (BriskError, OSError) as error:
            return str(error)
        agrees: list[bool] = all_agreeing(answers, own, scores).tolist()
        return agrees

    def _find(self, model: Path, digest: str, scores: Scores) -> BaseModel | None:
        """Load the model unless it is loaded. Raises InvalidModelError if its file has changed;
        return None if that was said already."""
        key = (model, digest, scores.value)
        if key not in self._loaded:
            stamps = _stamps_beside(model)
            if self._others.get((model, digest)) == stamps:
                return None
            with unchanged(model) as found:
                if found != digest:
                    self._others[model, digest] = stamps
                    raise InvalidModelError("the file has changed since it was loaded")
                graph = read_graph(model)
                base = load_graph(graph, 1, taps_of((), scores, graph))
            if len(self._loaded) >= MOST_PROGRAMS:
                del self._loaded[next(iter(self._loaded))]
            self._loaded[key] = base
        return self._loaded[key]


_Stamps = dict[str, Stamp]
"""The stamps of the files in a folder by name."""


def _stamps_beside(model: Path) -> _Stamps:
    stamps = {}
    for each in model.parent.iterdir():
        with contextlib.suppress(OSError):  # it has gone, or is a link that leads nowhere
            stamps[each.name] = stamp_of(each.stat())
    return stamps


if __name__ == "__main__":
    sys.exit(main())
