"""Giving memory back when sessions are gone, while no request waits for the interpreter."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

from brisk.execution.heap import give_back

LONGEST_WAIT_S = 1.0
"""How long a collection waits for a moment without requests; then it is made beside them."""

_LOOK_S = 0.002


def tidy_up(is_free: Callable[[float], bool | None]) -> bool:
    """Collect what is unreachable and return free memory to the system, at a quiet moment.

    ``is_free`` is given a time-out: whether no request runs; None where something more urgent
    than this is to be done. Then nothing is, and the result is False.
    """
    until_s = time.monotonic() + LONGEST_WAIT_S
    while not (free := is_free(_LOOK_S)):
        if free is None:
            return False
        if time.monotonic() > until_s:
            break
    gc.collect()
    give_back()
    return True
