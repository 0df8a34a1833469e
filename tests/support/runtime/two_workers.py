"""The two workers of a runtime, told apart from outside."""

from __future__ import annotations

from brisk.protocol.runtime_paths import RuntimePaths
from support.runtime.runtime_process import (
    background_worker_of,
    processes_of,
    supervisor_of,
)


def foreground_worker_of(place: RuntimePaths) -> int:
    others = {supervisor_of(place), background_worker_of(place)}
    (worker,) = set(processes_of(place)) - others
    return worker


def background(place: RuntimePaths) -> int:
    worker = background_worker_of(place)
    assert worker is not None
    return worker
