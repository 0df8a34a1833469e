"""``python -m brisk.runtime.artefact_process MODEL``: builds a model's artefact, out of the way.

Every failure is told in one line and is nobody's trouble: the model is served without.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

from brisk.runtime.saying import say

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Exit status: 0 built, or there already; 1 not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    parent = os.getppid()
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return 1
    _stand_back()
    os.environ["OMP_NUM_THREADS"] = "1"
    return _build(arguments.model, arguments.device, arguments.threads)


def _stand_back() -> None:
    """Run only on idle processors, and end first when memory is short; torch comes after this."""
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except OSError:  # some containers refuse it
        os.setpriority(os.PRIO_PROCESS, 0, 19)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _build(model: Path, device: str, threads: int) -> int:
    import torch

    from brisk.errors import BriskError, UnavailableError
    from brisk.execution.preparation import is_prepared, prepare

    torch.set_num_threads(1)
    try:
        if is_prepared(model, torch.device(device), threads):
            return 0
        made = prepare(model, torch.device(device), threads, is_measured=False)
    except UnavailableError:
        return 0  # another process is at it
    except (BriskError, OSError) as error:
        say(f"no artefact of {model}: {error}")
        return 1
    say(f"made {made.path} in {made.seconds:.1f} s: the next start is from it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
