"""Niceness of what real-time requests wait for, below that of other processes where it may be.

A processor that two threads of one niceness share gives each half, so that a request computed by
two threads on two cores takes up to twice as long beside any busy process, such as the start of
another model's stub. Going below niceness 0 needs CAP_SYS_NICE or a limit (RLIMIT_NICE) that
allows it; without them nothing changes.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path

from brisk.errors import InvalidConfigurationError

VARIABLE = "BRISK_REALTIME_NICENESS"
DEFAULT_NICENESS = -15
"""Beside one thread of niceness 0, a thread of this gets 97 percent of a processor."""

LOWEST = -20


def realtime_niceness(environment: Mapping[str, str] = os.environ) -> int:
    """``$BRISK_REALTIME_NICENESS``, -20 to 0; 0: none is wanted.

    Raises InvalidConfigurationError where it is something else.
    """
    text = environment.get(VARIABLE, "") or str(DEFAULT_NICENESS)
    try:
        niceness = int(text)
    except ValueError:
        niceness = 1
    if not LOWEST <= niceness <= 0:
        raise InvalidConfigurationError(
            f"{VARIABLE} must be a whole number from {LOWEST} to 0, not '{text}'"
        )
    return niceness


def renice(niceness: int, except_for: Collection[int] = ()) -> bool:
    """Give the threads of this process a niceness, those of the given numbers excepted.

    Threads that these start later inherit it. False, changing nothing, where it is not allowed.
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
