"""Refusals of requests that would be late, with a hint when to try again.

The durations of segments are predictable (REEF, 2.1).
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from brisk.errors import UnavailableError

DEFAULT_RETRY_NS = 100_000_000
"""The hint when to retry if it is unknown how long the waiting requests will take."""


def refuse_if_late(
    now_ns: int,
    deadline_ns: int,
    running_end_ns: int | None,
    ahead_ns: Iterable[float | None],
    run_ns: float | None,
) -> None:
    """Raises UnavailableError, with a hint what to do, if the deadline cannot be met.

    ``running_end_ns``: expected end of the current run, if the request does not interrupt it.
    ``ahead_ns``: the durations of the jobs that go first, ``run_ns``: the request's own. Unknown
    durations count as 0, so that no request is refused on a guess.
    """
    if run_ns is None:
        return
    start_ns = max(now_ns, running_end_ns or now_ns) + sum(taken_ns or 0 for taken_ns in ahead_ns)
    end_ns = start_ns + run_ns
    if end_ns <= deadline_ns:
        return
    late = f"the time-out of {(deadline_ns - now_ns) / 1e6:.1f} ms cannot be met: the "
    takes = f"takes {run_ns / 1e6:.1f} ms"
    if now_ns + run_ns > deadline_ns:  # also on an idle device
        raise UnavailableError(f"{late}request alone {takes}; give it a longer time-out")
    raise UnavailableError(
        f"{late}device is expected to be free in {(start_ns - now_ns) / 1e6:.1f} ms and the "
        f"request {takes}; {retry_hint(end_ns - deadline_ns)}"
    )


def retry_hint(wait_ns: float | None) -> str:
    """Return the end of a refusal's message: ``retry in N ms``, N a whole number of at least 1."""
    wait_ms = math.ceil((DEFAULT_RETRY_NS if wait_ns is None else wait_ns) / 1e6)
    return f"retry in {max(1, wait_ms)} ms"
