"""Short turns for the foreground worker, long ones for the background worker."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import threading
from pathlib import Path

import numpy as np
import pytest

from brisk.os_priority import LONG_SLICE_NS, SHORT_SLICE_NS, ask_slices
from brisk.protocol.runtime_paths import RuntimePaths
from support.runtime.runtime_process import describe, infer, opened, submit
from support.runtime.two_workers import background, foreground_worker_of

pytestmark = pytest.mark.timing

_SCHED_GETATTR = 315
_RUNTIME = slice(24, 32)
KERNEL = tuple(int(part) for part in platform.release().split(".")[:2])
ROWS = np.ones((2, 4), np.float32)

needs_slices = pytest.mark.skipif(KERNEL < (6, 12), reason="kernels before 6.12 have no slices")


def slice_ns(task: int) -> int:
    """Raises ProcessLookupError where the thread has ended."""
    data = ctypes.create_string_buffer(48)
    if ctypes.CDLL(None, use_errno=True).syscall(_SCHED_GETATTR, task, data, 48, 0):
        raise OSError(ctypes.get_errno(), f"thread {task}")
    return int.from_bytes(data.raw[_RUNTIME], "little")


def turns(process: int) -> set[tuple[int, int]]:
    """The policies and slices of its threads that take turns; some may end meanwhile."""
    found = set()
    for entry in Path(f"/proc/{process}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            policy = os.sched_getscheduler(int(entry.name))
            if policy != os.SCHED_IDLE:
                found.add((policy, slice_ns(int(entry.name))))
    return found


@needs_slices
def test_a_thread_and_those_it_starts_take_short_turns_at_their_niceness() -> None:
    found: list[tuple[int, int]] = []

    def look() -> None:
        own = threading.get_native_id()
        found.append((slice_ns(own), os.getpriority(os.PRIO_PROCESS, own)))

    def shorten() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 3)
        assert ask_slices(SHORT_SLICE_NS)
        look()
        inner = threading.Thread(target=look)
        inner.start()
        inner.join()

    thread = threading.Thread(target=shorten)
    thread.start()
    thread.join()
    assert found == [(SHORT_SLICE_NS, 3)] * 2
    assert slice_ns(0) != SHORT_SLICE_NS


def test_a_thread_of_another_policy_stays_as_it_is() -> None:
    found: list[bool] = []

    def shorten() -> None:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        found.append(ask_slices(SHORT_SLICE_NS))
        assert os.sched_getscheduler(0) == os.SCHED_IDLE

    thread = threading.Thread(target=shorten)
    thread.start()
    thread.join()
    assert found == [False]


@needs_slices
def test_all_threads_of_the_foreground_worker_take_short_turns_and_of_the_background_one_long_ones(
    place: RuntimePaths, quick: Path
) -> None:
    with opened(place, describe(quick)) as connection:
        infer(connection, ROWS)
        submit(connection, ROWS, "besteffort")[1].output()
        assert turns(foreground_worker_of(place)) == {(os.SCHED_OTHER, SHORT_SLICE_NS)}
        assert turns(background(place)) == {(os.SCHED_BATCH, LONG_SLICE_NS)}
