"""What a helper process of a worker does first: step aside, and end when the worker does."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

from brisk.os_priority import LEAST, run_when_idle, set_process

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
        run_when_idle()
    except OSError:  # some containers refuse it
        set_process(LEAST)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    os.environ["OMP_NUM_THREADS"] = "1"
    return True
