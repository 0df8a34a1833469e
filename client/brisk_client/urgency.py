"""Class and deadline of a request, for any of tritonclient's clients.

    from brisk_client.urgency import infer

    infer(client, "model", inputs, job_class="realtime", deadline_s=0.05)

The server refuses a class above the entry's own, unless the entry's parameter ``brisk_max_class``
allows it.

``client`` is an ``InferenceServerClient`` of ``tritonclient.http``, ``.grpc``, ``.http.aio`` or
``.grpc.aio``; with the last two the call is awaited. For requests without a class the model's
entry decides.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any

JOB_CLASSES = ("realtime", "normal", "besteffort")
"""The classes of requests, the most urgent first."""

CLASS_PARAMETER = "brisk_class"

_LONGEST_S = 1e6


def options(
    job_class: str | None = None,
    deadline_s: float | None = None,
    parameters: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return keyword arguments for ``infer`` or ``async_infer`` of any tritonclient client.

    ``job_class``: one of JOB_CLASSES; None leaves it to the model's entry. ``deadline_s``:
    seconds from the request's arrival at the server after which its answer is of no use; the
    server then ends the run at the next segment with an error (UNAVAILABLE). ``parameters``:
    further parameters of the request. Raises ValueError, which names the wrong argument.
    """
    chosen: dict[str, Any] = {}
    merged = dict(parameters or {})
    if job_class is not None:
        if merged.get(CLASS_PARAMETER, job_class) != job_class:
            raise ValueError(
                f"job_class '{job_class}' contradicts parameter {CLASS_PARAMETER} "
                f"'{merged[CLASS_PARAMETER]}'"
            )
        merged[CLASS_PARAMETER] = check_class(job_class)
    elif CLASS_PARAMETER in merged:
        check_class(merged[CLASS_PARAMETER])
    if merged:
        chosen["parameters"] = merged
    if deadline_s is not None:
        chosen["timeout"] = deadline_us(deadline_s)
    return chosen


def infer(
    client: Any,
    model: str,
    inputs: Sequence[Any],
    *,
    job_class: str | None = None,
    deadline_s: float | None = None,
    parameters: Mapping[str, Any] | None = None,
    **others: Any,
) -> Any:
    """Call ``client.infer`` and return its result, which for asyncio clients is an awaitable.

    ``others`` are passed on to ``client.infer``. Raises ValueError like ``options``, before
    anything is sent, and tritonclient's own ``InferenceServerException``.
    """
    if deadline_s is not None and "timeout" in others:
        raise ValueError("give deadline_s or timeout, not both: they are the same")
    return client.infer(model, inputs, **options(job_class, deadline_s, parameters), **others)


def check_class(job_class: str) -> str:
    """Return ``job_class``. Raises ValueError, which names the nearest class, if there is none of
    that name."""
    if job_class not in JOB_CLASSES:
        near = difflib.get_close_matches(str(job_class).lower(), JOB_CLASSES, n=1, cutoff=0.5)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise ValueError(f"there is no class '{job_class}', only {', '.join(JOB_CLASSES)}{hint}")
    return job_class


def deadline_us(deadline_s: float) -> int:
    """Return a deadline in whole microseconds, the unit of a request's ``timeout``; at least one.

    Raises ValueError if ``deadline_s`` is no positive time of at most 11 days.
    """
    if not (math.isfinite(deadline_s) and 0 < deadline_s <= _LONGEST_S):
        raise ValueError(f"a deadline is a positive number of seconds, not {deadline_s!r}")
    return max(1, round(deadline_s * 1e6))
