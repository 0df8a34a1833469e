"""What a worker takes before any model comes, so that no first run has to wait for it."""

from __future__ import annotations

from brisk.compiled.library import library
from brisk.execution.heap import populate


def take_ahead(threads: int, reserved: int) -> None:
    """Make the helpers of runs on so many threads, and have the memory at ``reserved`` given.

    ``reserved``: what ``brisk.execution.heap.reserve`` returned. In any thread.
    """
    executor = library()
    if executor is not None:
        executor.use_threads(threads)
    populate(reserved)
