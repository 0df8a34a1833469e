"""Checks of what a process holds open: descriptors, mappings of shared memory, leases; and systems
that have no more for it."""

from __future__ import annotations

import fcntl
import gc
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.waiting import wait_until

SHARED_MEMORY = "memfd:brisk"


def _held() -> set[tuple[str, str]]:
    """Return descriptors with what they stand for, and mapped shared memory with its addresses."""
    open_files = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            open_files.add((number, os.readlink(f"/proc/self/fd/{number}")))
        except FileNotFoundError:  # that of the listing itself
            continue
    for line in Path("/proc/self/maps").read_text().splitlines():
        if SHARED_MEMORY in line:
            open_files.add(("mapping", line))
    return open_files


@contextmanager
def nothing_left_open() -> Iterator[None]:
    """Check that what the block opens and maps is closed and unmapped at its end.

    Other tests of the process may have left files to the garbage collector. It closes them when it
    likes, so they go before the block, and only what is new afterwards counts.
    """
    gc.collect()
    before = _held()
    yield
    wait_until(lambda: _held() <= before, "an end to what the block has opened", 5.0)


@contextmanager
def no_descriptor_left(process: int = 0) -> Iterator[None]:
    """Let a process, or this one, open nothing more while the block lasts."""
    limits = resource.prlimit(process, resource.RLIMIT_NOFILE)
    resource.prlimit(process, resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.prlimit(process, resource.RLIMIT_NOFILE, limits)


@contextmanager
def no_thread_left() -> Iterator[None]:
    """Let this process's interpreter start no thread while the block lasts: the stack of one would
    take more than there are addresses."""
    usual = threading.stack_size(1 << 47)
    try:
        yield
    finally:
        threading.stack_size(usual)


def skip_without_leases(folder: Path) -> None:
    """Skip the test where the file system gives a process no lease on a file of its own."""
    with (folder / "leased").open("wb") as file:
        try:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except OSError:
            pytest.skip("the file system of the temporary folder has no leases")
