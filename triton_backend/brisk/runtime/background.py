"""How a background worker gives way to everything else on the machine."""

from __future__ import annotations

import contextlib
import os

from brisk.runtime.saying import say

OUT_OF_MEMORY_SCORE = 500
"""Added to the worker's badness, of at most 1000: the kernel ends it before any other of ours."""

LOWEST_NICENESS = 19


def stand_back() -> None:
    """Run only on what processors others leave, and be the first to end when memory is short.

    Threads started later inherit both. Where SCHED_IDLE is refused, as some containers do, the
    lowest niceness takes its place: then the kernel lets a best-effort thread run for a
    seventieth of the time of one that competes with it.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError as error:
        os.setpriority(os.PRIO_PROCESS, 0, LOWEST_NICENESS)
        say(f"SCHED_IDLE is refused ({error}): best-effort work runs at nice {LOWEST_NICENESS}")
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(OUT_OF_MEMORY_SCORE))
