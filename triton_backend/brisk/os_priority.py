"""Who gets a processor first: niceness of Brisk's processes and threads, and what sets it.

| who | niceness |
| --- | --- |
| computing threads and stubs of real-time models | ``$BRISK_REALTIME_NICENESS`` (-15) |
| everything else that a request waits for | the server's own |
| loads: their lanes, and threads that stand back | ``LOADING`` |
| training of learned caches by ``brisk caches`` | ``TRAINING`` |
| best-effort work | ``LEAST``, or what gives it its minimum share |
| helper processes in the background | idle processors only |

A processor that two threads of one niceness share gives each half, so that a request computed by
two threads on two cores takes up to twice as long beside any busy process, such as the start of
another model's stub. Going below niceness 0 needs CAP_SYS_NICE or a limit (RLIMIT_NICE) that
allows it; without them nothing changes. Threads inherit the niceness of the one that starts them.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Collection, Mapping
from pathlib import Path

from brisk.errors import InvalidConfigurationError

VARIABLE = "BRISK_REALTIME_NICENESS"
DEFAULT_NICENESS = -15
"""Beside one thread of niceness 0, a thread of this gets 97 percent of a processor."""

MOST_URGENT, LEAST = -20, 19

LOADING = 5
"""Not SCHED_IDLE, nor 19: such a thread holds the interpreter's lock now and then, and it must
have a processor to let go of it. With both processors busy, a real-time request beside a load
waited 0.13 to 1.4 s for the lock under SCHED_IDLE, 0.3 to 0.4 at 19, 0.024 to 0.028 at 5."""

TRAINING = 10


def realtime_niceness(environment: Mapping[str, str] = os.environ) -> int:
    """``$BRISK_REALTIME_NICENESS``, -20 to 0; 0: none is wanted.

    Raises InvalidConfigurationError where it is something else.
    """
    text = environment.get(VARIABLE, "") or str(DEFAULT_NICENESS)
    try:
        niceness = int(text)
    except ValueError:
        niceness = 1
    if not MOST_URGENT <= niceness <= 0:
        raise InvalidConfigurationError(
            f"{VARIABLE} must be a whole number from {MOST_URGENT} to 0, not '{text}'"
        )
    return niceness


def process_niceness() -> int:
    """Of the thread that asks, which is what threads and processes that it starts inherit."""
    return os.getpriority(os.PRIO_PROCESS, 0)


def set_process(niceness: int) -> None:
    """Of the calling thread, and so of all that it starts from now on.

    Raises PermissionError where it may not go so low.
    """
    os.setpriority(os.PRIO_PROCESS, 0, niceness)


def lower_thread(niceness: int) -> None:
    """Of the calling thread; nothing where it is refused. There is no way back up."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)


def set_threads(niceness: int, except_for: Collection[int] = ()) -> bool:
    """Give the threads of this process a niceness, those of the given numbers excepted.

    False, changing nothing, where it is not allowed.
    """
    for entry in sorted(Path("/proc/self/task").iterdir()):
        if (thread := int(entry.name)) in except_for:
            continue
        try:
            os.setpriority(os.PRIO_PROCESS, thread, niceness)
        except ProcessLookupError:
            continue  # it has ended meanwhile
        except PermissionError:
            return False
    return True


def run_when_idle() -> None:
    """Run the process only on processors that are idle. Raises OSError where that is refused."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
