"""Early answers learned from the traffic alone, for models without caches trained by hand.

The thread that watches the caches' files calls ``look`` once a second. One process at a time
learns (``brisk.runtime.early_exit.learning_process``) and writes its result to a file, which both
workers read.
"""

from __future__ import annotations

import json
import math
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from brisk.artefacts.store import FOR_ALL_MACHINES, locked
from brisk.exits.files.learning_record import (
    BUSY,
    OTHER_FILES,
    Aim,
    LearningRecord,
    Stage,
    collected,
    lock_file,
    read_record,
    record_file,
    write_record,
)
from brisk.exits.files.sample_files import delete_samples
from brisk.exits.files.versions import (
    adapted_file,
    caches_file,
    candidate_file,
    latest,
    learned_file,
    previous_file,
)
from brisk.runtime.early_exit.kept_inputs import delete_inputs
from brisk.runtime.helper_process import HelperProcess
from brisk.runtime.log import LOGGER

RESTART_S = 60.0
"""The least time from the start of a process that failed, found another one at work, or left no
record of the model, to that of the next one."""

MOST_FAILURES = 3

COUNT_S = 5.0
"""The time between two counts of a folder of samples."""


class FirstLearning:
    """Starts the learning process when a model has enough samples, and reports its progress.

    ``most_bytes``: the most bytes of a model's samples.
    ``is_on``: whether samples are taken at all.
    ``learns``: whether this worker starts the process.
    """

    def __init__(self, most_bytes: int, *, is_on: bool, learns: bool) -> None:
        self._most_bytes = most_bytes
        self.is_on = is_on
        self._learns = learns
        self._process = HelperProcess("brisk.runtime.early_exit.learning_process")
        self._learner: Path | None = None
        """The model of the process, if there is one."""
        self._aims: dict[Path, Aim] = {}
        """The aims of the last looks."""
        self._failures: dict[Path, int] = {}
        """The processes that have failed one after the other, for the present aim and load."""
        self._started_s: dict[Path, float] = {}
        self._busy: set[Path] = set()
        """The models for which another process was found at work."""
        self._counted: dict[Path, tuple[float, int, int]] = {}

    @property
    def process_id(self) -> int | None:
        """The id of the learning process; None if it is not running."""
        return self._process.process_id

    def look(self, model: Path, aim: Aim, threads: int) -> tuple[bool, str]:
        """Return whether samples of ``model``'s runs are wanted, and its progress as text.

        Start the learning process if it is due in this worker; delete samples that are of no use.
        """
        if not self.is_on:
            return False, "off: BRISK_SAMPLED_SHARE is 0"
        if self._aims.get(model) != aim:  # another promise, or another file
            self._aims[model] = aim
            self._failures.pop(model, None)
            self._busy.discard(model)
            self._started_s.pop(model, None)
            self._end(model)
        if not aim.is_present(model):
            self._end(model)
            return False, "off: a file of the model is another than the loaded one; load it anew"
        record = read_record(model)
        if record is not None and not record.is_for(aim):
            record = None
        rows, size = self._count(model)
        takes = record is not None and record.takes_samples(rows, size, self._most_bytes)
        is_there = latest(model).exists()
        is_withdrawn = record is not None and record.stage is Stage.SERVED and not is_there
        if record is not None and record.is_final and not is_there:
            self.drop(model)
        if self._learns:
            self._follow_process()
            if not is_withdrawn:
                self._go_on(model, aim, threads, record, rows, size)
        if self._failures.get(model, 0) >= MOST_FAILURES:
            return False, (
                f"given up: the process that learns has failed {MOST_FAILURES} times, for reasons "
                "that the runtime's log tells; a new load tries again"
            )
        if is_there:  # it may promise less than ``aim``, and answer nothing
            return (False, "") if record is None else (takes, record.words(rows))
        if record is None:
            return False, "is looked at"
        if is_withdrawn:
            return False, "withdrawn: what was learned is gone; a new load begins anew"
        if record.collects and find_spec("torch") is None:
            return False, f"learning takes torch, which {sys.executable} does not have"
        return takes, record.progress(rows, size, self._most_bytes)

    def begin(self, model: Path, aim: Aim) -> None:
        """Note that ``model`` was loaded and no caches fit it: try again what has failed. Delete
        the files of what was learned, since they do not fit, or of what was withdrawn; with it the
        samples, of which the same would be learned again.

        While a process learns for the model, perhaps of another container, the files are its own
        and stay. Any thread. Raises OSError.
        """
        self._failures.pop(model, None)
        self._started_s.pop(model, None)
        if not self._learns:
            return
        record = read_record(model)
        if latest(model).exists() or (record is not None and record.stage is Stage.SERVED):
            with locked(lock_file(model), FOR_ALL_MACHINES) as is_alone:
                if is_alone:
                    self._delete(model, aim)
        elif record is not None and record.is_for(aim):
            _stamp(model, aim)

    def keep(self, model: Path, aim: Aim) -> None:
        """Note that ``model`` was loaded with caches that were learned of the same bytes: the
        record stays, although the file may be another. Any thread. Raises OSError."""
        self._failures.pop(model, None)
        if self._learns:
            _stamp(model, aim)

    def _delete(self, model: Path, aim: Aim) -> None:
        """Delete all files learned for ``model``, and the samples if it was withdrawn. The record
        stays if it says that the samples are of another file of the model: the process that
        replaces it deletes these."""
        files = [learned_file(model), adapted_file(model), candidate_file(model)]
        record = read_record(model)
        if not latest(model).exists():
            delete_samples(model)
        if record is None or not record.is_of_another_file(aim):
            files.append(record_file(model))
        for file in (*files, previous_file(model)):
            file.unlink(missing_ok=True)

    def drop(self, model: Path) -> None:
        """Delete the samples of ``model``, if it has any: nothing is learned from them any more.

        Only the worker that learns does so. Raises OSError.
        """
        if self._learns and self._count(model)[1]:
            delete_inputs(model)
            self._counted.pop(model, None)

    def forget(self, models: set[Path]) -> None:
        """End the process unless it learns for one of ``models``, those still served."""
        if self._learner is not None and self._learner not in models:
            self._end(self._learner)

    def _end(self, model: Path) -> None:
        """End the process if it learns for ``model``."""
        if self._learner == model:
            self._process.end()
            self._learner = None

    def _go_on(
        self,
        model: Path,
        aim: Aim,
        threads: int,
        record: LearningRecord | None,
        rows: int,
        size: int,
    ) -> None:
        """Start the process if ``model`` has something to learn and no process runs.

        Wait ``RESTART_S`` after a failure, while another process learns for the model, and where a
        process has looked at the model but its record is of other copies by now: too many share
        the cache. Start none after ``MOST_FAILURES`` failures.
        """
        # a process that was learning was killed: its try goes on, whatever is stored by now
        is_due = record is None or record.stage is Stage.LEARNING
        is_due = is_due or (record is not None and record.is_due(rows, size, self._most_bytes))
        is_due = is_due and (record is None or find_spec("torch") is not None)
        now_s = time.monotonic()
        failures = self._failures.get(model, 0)
        waits = failures or model in self._busy or record is None
        waits = waits and now_s - self._started_s.get(model, -math.inf) < RESTART_S
        if not is_due or self._learner is not None or waits or failures >= MOST_FAILURES:
            return
        self._started_s[model] = now_s
        self._process.start(str(model), json.dumps(aim), "--threads", str(threads))
        self._learner = model

    def _follow_process(self) -> None:
        status = self._process.ended()
        if self._learner is None or status is None:
            return
        model, self._learner = self._learner, None
        (self._busy.add if status == BUSY else self._busy.discard)(model)
        has_failed = status not in (0, OTHER_FILES, BUSY)
        failures = self._failures[model] = self._failures.get(model, 0) + 1 if has_failed else 0
        if has_failed:
            what = "; given up until its next load" if failures >= MOST_FAILURES else ""
            LOGGER.warning(f"learning early answers of {model} ended with status {status}{what}")

    def _count(self, model: Path) -> tuple[int, int]:
        """Return the rows and bytes of the model's samples, counted at most ``COUNT_S`` ago."""
        now_s = time.monotonic()
        at_s, rows, size = self._counted.get(model, (-COUNT_S, 0, 0))
        if now_s - at_s >= COUNT_S:
            rows, size = collected(model)
            self._counted[model] = now_s, rows, size
        return rows, size


def is_trained_by_hand(model: Path) -> bool:
    """Whether caches trained by hand lie next to the model; only their author replaces them."""
    return caches_file(model).exists()


def _stamp(model: Path, aim: Aim) -> None:
    """Note in the record that it is of the file of ``aim``, unless it is of another aim. A process
    that learns for the model now writes its own record; the next one notes it."""
    if _stamped(model, aim) is None:
        return
    with locked(lock_file(model), FOR_ALL_MACHINES) as is_alone:
        stamped = _stamped(model, aim)
        if is_alone and stamped is not None:
            write_record(model, stamped)


def _stamped(model: Path, aim: Aim) -> LearningRecord | None:
    """Return the record as it is to be written; None if it is to stay as it is."""
    record = read_record(model)
    stamped = None if record is None else record.of_copy(aim)
    return stamped if stamped is not None and stamped != record and stamped.is_for(aim) else None
