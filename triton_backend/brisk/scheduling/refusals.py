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
    came_ns: int | None = None,
) -> None:
    """Raises UnavailableError, with a hint what to do, if the deadline cannot be met.

    ``came_ns``: when the request came to the server, and its time-out began; ``now_ns`` if None.
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
    came_ns = now_ns if came_ns is None else came_ns
    if deadline_ns <= now_ns:
        raise UnavailableError(f"{ran_out(came_ns, deadline_ns, now_ns)}; give it a longer one")
    whole, left = _milliseconds(deadline_ns - came_ns), _milliseconds(deadline_ns - now_ns)
    spent = "" if left == whole else f", of which {left} are left,"
    late = f"the time-out of {whole}{spent} cannot be met: the "
    takes = f"takes {_milliseconds(run_ns)}"
    if now_ns + run_ns > deadline_ns:  # also on an idle device
        raise UnavailableError(f"{late}request alone {takes}; give it a longer time-out")
    raise UnavailableError(
        f"{late}device is expected to be free in {_milliseconds(start_ns - now_ns)} and the "
        f"request {takes}; {retry_hint(end_ns - deadline_ns)}"
    )


def ran_out(came_ns: int, deadline_ns: int, now_ns: int) -> str:
    """Return a text on a request whose deadline has passed. ``came_ns``: as above."""
    return (
        f"the request's time-out ran out: it is {_milliseconds(deadline_ns - came_ns)}, and "
        f"{_milliseconds(now_ns - came_ns)} have passed since it came"
    )


def _milliseconds(duration_ns: float) -> str:
    """Return a duration as text: at least its first two figures."""
    duration_ms = duration_ns / 1e6
    return f"{duration_ms:.1f} ms" if duration_ms >= 1 else f"{duration_ms:.2g} ms"


def retry_hint(wait_ns: float | None) -> str:
    """Return the end of a refusal's message: ``retry in N ms``, N a whole number of at least 1."""
    wait_ms = math.ceil((DEFAULT_RETRY_NS if wait_ns is None else wait_ns) / 1e6)
    return f"retry in {max(1, wait_ms)} ms"
