"""Whether a real-time request can be in time: layer times are predictable (REEF, 2.1)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from brisk.errors import UnavailableError

DEFAULT_RETRY_NS = 100_000_000
"""Hint where nothing is known of how long the requests that wait will take."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """``start_ns``: when the device is expected to be free for it; ``run_ns``: what it takes."""

    start_ns: float
    run_ns: float

    @property
    def end_ns(self) -> float:
        return self.start_ns + self.run_ns


def predict(
    now_ns: int, running_end_ns: int | None, ahead_ns: Iterable[float | None], run_ns: float | None
) -> Prediction | None:
    """When a job will be done; None where its own time is not known.

    ``running_end_ns``: expected end of the run under way that it will not interrupt. ``ahead_ns``:
    the times of the jobs that go first; what is not known counts nothing, so that no request is
    refused on a guess.
    """
    if run_ns is None:
        return None
    free_ns = max(now_ns, running_end_ns or now_ns)
    return Prediction(free_ns + sum(taken_ns or 0 for taken_ns in ahead_ns), run_ns)


def refuse_if_late(now_ns: int, deadline_ns: int | None, prediction: Prediction | None) -> None:
    """UnavailableError, with a hint when to try again, where the deadline cannot be met."""
    if deadline_ns is None or prediction is None or prediction.end_ns <= deadline_ns:
        return
    left_ms = (deadline_ns - now_ns) / 1e6
    raise UnavailableError(
        f"the time-out of {left_ms:.1f} ms cannot be met: the device is expected to be free in "
        f"{(prediction.start_ns - now_ns) / 1e6:.1f} ms and the request takes "
        f"{prediction.run_ns / 1e6:.1f} ms; {retry_hint(prediction.end_ns - deadline_ns)}"
    )


def retry_hint(wait_ns: float | None) -> str:
    """The end of a refusal: ``retry in N ms``, N a whole number of at least 1."""
    wait_ms = math.ceil((DEFAULT_RETRY_NS if wait_ns is None else wait_ns) / 1e6)
    return f"retry in {max(1, wait_ms)} ms"
