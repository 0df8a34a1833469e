"""Copies of some requests' inputs, for caches to learn from: few, bounded, and private.

The worker's main thread copies; another thread writes. If the writer cannot keep up, samples are
dropped: a sample is worth less than a request's time.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import random
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from brisk.exits.files.sample_files import Arrays, write_samples
from brisk.exits.files.versions import samples_folder
from brisk.runtime.log import LOGGER
from brisk.runtime.sessions.session import CachedRun

ROWS_PER_FILE = 64
BYTES_PER_FILE = 8 << 20
"""The inputs in memory at which a file is written, whatever its rows."""

LONGEST_IN_MEMORY_S = 5.0
"""The longest time from a sample's copy to its file."""

MOST_FILES = 20_000
"""The most files of a model. All are looked at whenever one is written: where a request comes now
and then, each has a row or two, and there would soon be hundreds of thousands."""

ABANDONED_S = 60.0
"""The age of an unfinished file after which its writer counts as dead."""

COLLECTED_EVERY_S = 0.05
"""The least time between samples of a model without learned caches.

A copy of an image takes some 0.1 ms.
"""

BYTES_PER_S, BURST_S = 6 << 20, 1.0
"""The most bytes of a model's samples a second, and for how long more may come at once. To
compress them takes 4 % of a processor."""

PAUSE_S = 60.0
"""How long no samples of a model are kept whose file could not be written: a full disk may get
room."""

MOST_WAITING = 64
"""The most runs that are copied and wait for the writer."""


@dataclass(slots=True)
class _Buffer:
    """Samples of one model that wait to be written.

    ``since_s``: when the first was copied; ``size``: their bytes; ``parts``: arrays by input name,
    of one run each.
    """

    since_s: float
    rows: int = 0
    size: int = 0
    parts: list[Arrays] = field(default_factory=list)

    def add(self, part: Arrays) -> None:
        self.parts.append(part)
        self.rows += len(next(iter(part.values())))
        self.size += sum(array.nbytes for array in part.values())

    @property
    def is_due(self) -> bool:
        is_full = self.rows >= ROWS_PER_FILE or self.size >= BYTES_PER_FILE
        return is_full or time.monotonic() - self.since_s >= LONGEST_IN_MEMORY_S


class Sampler:
    """Samples inputs of runs: of models with learned caches a random ``share``, of models that
    collect samples for their first caches one run every ``COLLECTED_EVERY_S``.

    ``most_bytes``: the most bytes of one model's files; beyond it the oldest files are deleted.
    ``share`` 0: no inputs are kept.
    """

    def __init__(self, share: float, most_bytes: int, seed: int | None = None) -> None:
        self._share = share
        self._most_bytes = most_bytes
        self._random = random.Random(seed)
        self._taken: queue.Queue[tuple[Path, Arrays]] = queue.Queue(MOST_WAITING)
        self._writer: threading.Thread | None = None
        self._next_s: dict[Path, float] = {}
        """The time when the next run is kept, for models without learned caches."""
        self._busy_s: dict[Path, float] = {}
        """The time until which the samples of a model take all of ``BYTES_PER_S``."""

    def sample(self, runs: Iterable[CachedRun]) -> None:
        """Copy the inputs of some ``runs``. Precondition: their last answers are not sent yet."""
        for run in runs:
            if not self._share or not self._is_chosen(run):
                continue
            copies = run.copies()
            if copies is None:
                continue
            with contextlib.suppress(queue.Full):
                self._taken.put_nowait((run.session.path, copies))
            if self._writer is None:
                self._writer = threading.Thread(
                    target=self._run, name="brisk-samples", daemon=True
                )
                self._writer.start()

    def _is_chosen(self, run: CachedRun) -> bool:
        """Whether to keep the run's inputs; a model without learned caches gets enough samples
        within minutes."""
        model, now_s = run.session.path, time.monotonic()
        if run.frame is not None:
            if self._random.random() >= self._share:
                return False
        elif now_s < self._next_s.get(model, 0.0):
            return False
        else:
            self._next_s[model] = now_s + COLLECTED_EVERY_S
        busy_s = max(now_s, self._busy_s.get(model, 0.0))
        if busy_s > now_s + BURST_S:
            return False
        taken_s = sum(array.nbytes for array in run.inputs.values()) / BYTES_PER_S
        self._busy_s[model] = busy_s + taken_s
        return True

    def _run(self) -> None:
        buffers: dict[Path, _Buffer] = {}
        paused: dict[Path, float] = {}
        """The time until which no samples of a model are kept."""
        while True:
            with contextlib.suppress(queue.Empty):
                model, arrays = self._taken.get(timeout=LONGEST_IN_MEMORY_S)
                if time.monotonic() >= paused.get(model, 0.0):
                    buffers.setdefault(model, _Buffer(time.monotonic())).add(arrays)
            for model in [each for each, buffer in buffers.items() if buffer.is_due]:
                try:
                    self._write(model, buffers.pop(model).parts)
                except FileNotFoundError:
                    LOGGER.debug(f"samples of {model} were deleted while a file was written")
                except (OSError, MemoryError) as error:
                    paused[model] = time.monotonic() + PAUSE_S
                    reason = str(error) or "memory is short"
                    LOGGER.warning(f"no samples of {model} are kept for {PAUSE_S:.0f} s: {reason}")
                except ValueError as error:
                    paused[model] = math.inf
                    LOGGER.warning(f"no more samples of {model} are kept: {error}")

    def _write(self, model: Path, parts: list[Arrays]) -> None:
        write_samples(model, parts)
        _forget_the_oldest(samples_folder(model), self._most_bytes)


def _forget_the_oldest(folder: Path, most_bytes: int) -> None:
    """Delete the oldest sample files in ``folder`` until the rest are at most ``MOST_FILES`` and
    take at most ``most_bytes``.

    Also delete unfinished files older than ``ABANDONED_S``: their worker was killed.
    """
    sizes: dict[str, int] = {}
    with os.scandir(folder) as entries:  # a path for each would take three times as long
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # another worker has deleted it
                state = entry.stat()
                if entry.name.endswith(".npz"):
                    sizes[entry.name] = state.st_size
                elif (
                    entry.name.endswith(".unfinished")
                    and time.time() - state.st_mtime > ABANDONED_S
                ):
                    os.unlink(entry.path)
    total = 0
    for number, name in enumerate(sorted(sizes, reverse=True), start=1):
        total += sizes[name]
        if total > most_bytes or number > MOST_FILES:
            (folder / name).unlink(missing_ok=True)
