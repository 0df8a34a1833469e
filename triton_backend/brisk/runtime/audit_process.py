"""``python -m brisk.runtime.audit_process``: whole models at best-effort priority, for audits.

Reads questions from its standard input (``brisk.runtime.auditor``) and writes a line of JSON for
each: the classes, or an error in words. Runs on what processors others leave, a layer at a time
on one thread, and ends with the thread that started it, or when nothing was asked for long.
"""

from __future__ import annotations

import json
import select
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from brisk.runtime.idle_process import step_aside

if TYPE_CHECKING:
    import numpy as np

    from brisk.execution.loading import LoadedProgram

IDLE_END_S = 300.0
MOST_PROGRAMS = 4
"""Models in memory; the one that was asked about first goes."""


def main() -> int:
    """Exit status: 0 where it is needed no more, 1 where its starter has ended already."""
    if not step_aside():
        return 1
    import torch

    torch.set_num_threads(1)
    models = Models()
    given, told = sys.stdin.buffer, sys.stdout.buffer
    while select.select([given], [], [], IDLE_END_S)[0] and (line := given.readline()):
        header = json.loads(line)
        inputs = [_read(given, dtype, shape) for _, dtype, shape in header["inputs"]]
        told.write(json.dumps(models.answer(header, inputs)).encode() + b"\n")
        told.flush()
    return 0


def _read(given: BinaryIO, dtype: str, shape: list[int]) -> np.ndarray:
    import numpy as np

    array = np.empty(shape, dtype)
    if array.nbytes:
        given.readinto(array.data.cast("B"))  # type: ignore[attr-defined]  # a BufferedReader
    return array


class Models:
    """Loaded programs by file and digest."""

    def __init__(self) -> None:
        self._loaded: dict[tuple[str, str], LoadedProgram] = {}

    def answer(self, header: dict[str, Any], arrays: list[np.ndarray]) -> dict[str, Any]:
        """The classes of the rows, or the error."""
        from brisk.errors import BriskError
        from brisk.exits.collecting import run_base
        from brisk.exits.scores import ScoreForm, Scores
        from brisk.solutions.values import from_numpy

        value, layer, classes, form = header["scores"]
        scores = Scores(value, layer, classes, ScoreForm(form), (), is_certain=True)
        try:
            loaded = self._find(header["model"], header["digest"])
            names = [name for name, _, _ in header["inputs"]]
            values = {
                name: from_numpy(array, loaded.device)
                for name, array in zip(names, arrays, strict=True)
            }
            _, distribution = run_base(loaded, [], scores, values)
        except (BriskError, OSError) as error:
            return {"error": str(error)}
        return {"classes": distribution.argmax(1).tolist()}

    def _find(self, model: str, digest: str) -> LoadedProgram:
        """Raises InvalidModelError where the file is not what was served."""
        import torch

        from brisk.errors import InvalidModelError
        from brisk.execution.loading import load_program
        from brisk.exits.artefact import digest_of
        from brisk.graph.reader import read_program

        key = (model, digest)
        if key not in self._loaded:
            if digest_of(Path(model)) != digest:
                raise InvalidModelError("the file has changed since it was loaded")
            if len(self._loaded) >= MOST_PROGRAMS:
                del self._loaded[next(iter(self._loaded))]
            self._loaded[key] = load_program(read_program(Path(model)), torch.device("cpu"))
        return self._loaded[key]


if __name__ == "__main__":
    sys.exit(main())
