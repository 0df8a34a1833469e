"""The two workers of a runtime, told apart from outside."""

from __future__ import annotations

from brisk.protocol.runtime_paths import RuntimePaths
from support.runtime.runtime_process import (
    Answer,
    background_worker_of,
    processes_of,
    supervisor_of,
)
from support.runtime.runtime_processes import hurry_best_effort
from support.waiting import wait_until


def foreground_worker_of(place: RuntimePaths) -> int:
    others = {supervisor_of(place), background_worker_of(place)}
    (worker,) = set(processes_of(place)) - others
    return worker


def background(place: RuntimePaths) -> int:
    worker = background_worker_of(place)
    assert worker is not None
    return worker


def await_best_effort(place: RuntimePaths, answer: Answer) -> Answer:
    """Wait for the answer of a best-effort request, whatever other processes do."""

    def has_come() -> bool:
        hurry_best_effort(place.base)
        return answer.has_come

    wait_until(has_come, "the answer of a best-effort request", every_s=0.1)
    return answer
