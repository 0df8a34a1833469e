"""Threads of torch: of lanes, and of the executor beside them."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from brisk.segments.starting import lane_count


def executor_threads(threads: int) -> int:
    """Cores the executor computes on while lanes load: what they leave, at least one."""
    return max(threads - lane_count(threads), 1)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Around a lane's work: one thread, and tensors that remember nothing."""
    compute_alone()
    with torch.inference_mode():
        yield


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
