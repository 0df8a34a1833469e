"""Lanes: threads that load layers beside the one that runs them, each on a core of its own."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import torch

from brisk.execution.table import GiveWay, LayerTable

LANE_NICENESS = 5
"""Of lanes: requests of loaded models come first; who needs a layer at once loads it itself."""


def usable_cores() -> int:
    return len(os.sched_getaffinity(0))


def lane_count(threads: int) -> int:
    """Loading lanes on a machine of so many cores: all but the executor's, at least one."""
    return max(threads - 1, 1)


def executor_threads(threads: int) -> int:
    """Cores the executor computes on while lanes load: what they leave, at least one."""
    return max(threads - lane_count(threads), 1)


def dealt(count: int, lanes: int) -> list[list[int]]:
    """Layers for each lane in turn, where no plan says better."""
    return [list(range(lane, count, lanes)) for lane in range(lanes)]


class Lanes:
    """Threads that empty a table; they end by themselves. ``give_way`` as in its ``work``."""

    def __init__(self, table: LayerTable, count: int, give_way: GiveWay | None = None) -> None:
        self._table = table
        self._give_way = give_way
        self._threads = [
            threading.Thread(
                target=self._run, args=(lane,), name=f"brisk-load-{lane}", daemon=True
            )
            for lane in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Let the threads end after the layer each is at, and wait for that."""
        self._table.close()
        for thread in self._threads:
            thread.join()

    def _run(self, lane: int) -> None:
        compute_alone()
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LANE_NICENESS)
        with torch.inference_mode():
            self._table.work(lane, f"load-{lane}", self._give_way)


def compute_alone() -> None:
    """Give the calling thread's parallel operations one thread."""
    compute_with(1)


def compute_with(threads: int) -> None:
    """Give the calling thread's parallel operations so many threads.

    ``torch.set_num_threads`` would also change the number that MKL uses everywhere else.
    """
    torch.get_num_threads()  # a thread's first call sets its number to the process's
    library = openmp()
    if library is not None:
        library.omp_set_num_threads(threads)


@functools.cache
def openmp() -> ctypes.CDLL | None:
    """The OpenMP runtime that torch uses; None where it has none of a known name."""
    found: Sequence[Path] = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    for path in found:
        library = ctypes.CDLL(str(path))
        if hasattr(library, "omp_set_num_threads"):
            return library
    return None
