"""What a helper process of a worker does first: step aside, and end when the worker does."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def step_aside() -> bool:
    """Run only on idle processors, and end first when memory is short; torch comes after this.

    The kernel ends the process with the thread that started it. False where that has ended
    already.
    """
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return False
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError:  # some containers refuse it
        os.setpriority(os.PRIO_PROCESS, 0, 19)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    os.environ["OMP_NUM_THREADS"] = "1"
    return True
