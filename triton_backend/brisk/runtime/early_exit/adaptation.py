"""Keeps the process that adapts learned caches to the traffic running.

The thread that watches the caches' files calls ``look`` once a second
(``brisk.runtime.early_exit.adaptation_process``).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from brisk.errors import InvalidModelError
from brisk.exits.files.container import digest_at_end
from brisk.exits.files.versions import reference_file, samples_folder, trained_file
from brisk.runtime.helper_process import HelperProcess
from brisk.runtime.log import LOGGER

_PROCESS = "brisk.runtime.early_exit.adaptation_process"


class Adaptation:
    """Runs the adaptation process, one for all models; none if ``interval_s`` is 0.

    The interval is the time between two retrainings, and the least time from the start of a
    process that failed to the start of the next process.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._process = HelperProcess(_PROCESS)
        self._task: tuple[tuple[str, str], ...] = ()
        """The models of the process, each with the digest of its trained caches."""
        self._is_done = False

    @property
    def process_id(self) -> int | None:
        """The id of the adaptation process; None if it is not running."""
        return self._process.process_id

    def look(self, models: Iterable[Path]) -> None:
        """Keep a process running for exactly those of ``models`` whose caches can learn."""
        task = (
            tuple(sorted(filter(None, map(_learnable, set(models))))) if self._interval_s else ()
        )
        if task != self._task:
            self.end()
            self._task, self._is_done = task, False
            if task and find_spec("torch") is None:
                self._is_done = True
                LOGGER.info(
                    "learned caches stay as they were trained: to learn from the traffic takes "
                    f"torch, which {sys.executable} does not have (brisk-triton[train])"
                )
        if self._process.process_id is not None:
            status = self._process.ended()
            if status is None:
                return
            self._is_done = status == 0
            if status:
                LOGGER.warning(f"the adaptation of learned caches ended with status {status}")
        if task and not self._is_done and self._process.age_s >= self._interval_s:
            self._process.start("--interval", str(self._interval_s), *(model for model, _ in task))

    def end(self) -> None:
        """End the process. The files that it publishes are complete wherever it is ended."""
        if self._process.process_id is not None:
            self._process.end()
            self._process = HelperProcess(_PROCESS)  # a new one may start at once


def _learnable(model: Path) -> tuple[str, str] | None:
    """Return the model and the digest of its trained caches. Return None unless it has caches,
    their training data, and samples."""
    try:
        trained = digest_at_end(trained_file(model))
    except (FileNotFoundError, InvalidModelError):
        return None
    if not reference_file(model).exists() or not any(samples_folder(model).glob("*.npz")):
        return None
    return str(model), trained
