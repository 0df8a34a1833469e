"""Whether a real-time request can be in time: layer times are predictable (REEF, 2.1)."""

from __future__ import annotations

import math
from collections.abc import Iterable

from brisk.errors import UnavailableError

DEFAULT_RETRY_NS = 100_000_000
"""Hint where nothing is known of how long the requests that wait will take."""


def refuse_if_late(
    now_ns: int,
    deadline_ns: int,
    running_end_ns: int | None,
    ahead_ns: Iterable[float | None],
    run_ns: float | None,
) -> None:
    """UnavailableError, with a hint when to try again, where the deadline cannot be met.

    ``running_end_ns``: expected end of the run under way that it will not interrupt. ``ahead_ns``:
    the times of the jobs that go first, ``run_ns``: its own; what is not known counts nothing, so
    that no request is refused on a guess.
    """
    if run_ns is None:
        return
    start_ns = max(now_ns, running_end_ns or now_ns) + sum(taken_ns or 0 for taken_ns in ahead_ns)
    end_ns = start_ns + run_ns
    if end_ns <= deadline_ns:
        return
    raise UnavailableError(
        f"the time-out of {(deadline_ns - now_ns) / 1e6:.1f} ms cannot be met: the device is "
        f"expected to be free in {(start_ns - now_ns) / 1e6:.1f} ms and the request takes "
        f"{run_ns / 1e6:.1f} ms; {retry_hint(end_ns - deadline_ns)}"
    )


def retry_hint(wait_ns: float | None) -> str:
    """The end of a refusal: ``retry in N ms``, N a whole number of at least 1."""
    wait_ms = math.ceil((DEFAULT_RETRY_NS if wait_ns is None else wait_ns) / 1e6)
    return f"retry in {max(1, wait_ms)} ms"
