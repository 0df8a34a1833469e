"""Runs a workload: warms its models up, starts the generator processes, gathers the outcome."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any

from brisk_client.urgency import JOB_CLASSES
from brisk_client.workload.child_process import Child, child_process
from brisk_client.workload.description import Dependent, Workload, WorkloadFailedError
from brisk_client.workload.generator import DRAIN_S, generate
from brisk_client.workload.requests import warm_up
from brisk_client.workload.results import RunOutcome, begin_rows

Counts = Mapping[str, tuple[int, int, int]]
"""Requests answered, failed and dropped so far, by task."""

BEST_EFFORT = JOB_CLASSES[-1]

START_DELAY_S = 0.2
_READY_TIMEOUT_S = 60.0
_GRACE_S = 20.0


def run_workload(
    workload: Workload,
    url: str,
    *,
    rows: Path | None = None,
    watch: Callable[[Counts], None] = lambda counts: None,
    warm_ups: int = 2,
) -> RunOutcome:
    """Run all tasks against the gRPC endpoint ``url`` and return the outcome.

    ``rows``: file for a row per request (CSV, or JSON lines if it ends in ``.jsonl``).
    ``watch``: called with counts a few times a second, from this thread. ``warm_ups``: requests of
    each task before the start. If the server goes away during the run, the outcome has errors.
    Raises WorkloadFailedError.
    """
    workload = warm_up(workload, url, warm_ups)
    if rows is not None:
        begin_rows(rows)
    with contextlib.ExitStack() as running:
        generators = []
        for is_best_effort, names in groups(workload):
            arguments = (workload, names, url, is_best_effort, rows)
            child = child_process(f"the generator of {', '.join(names)}", generate, *arguments)
            generators.append(running.enter_context(child))
        _collect(generators, "ready", time.monotonic() + _READY_TIMEOUT_S)
        begin_s = time.monotonic() + START_DELAY_S
        for generator in generators:
            generator.say(begin_s)
        last_s = begin_s + workload.duration_s + DRAIN_S + _GRACE_S
        return RunOutcome(workload.duration_s, _collect(generators, "ended", last_s, watch))


def groups(workload: Workload) -> list[tuple[bool, list[str]]]:
    """Return the names of tasks for each process, and whether all of them are best-effort.

    Best-effort tasks have a process apart from the others, unless they are linked by dependencies
    to a task that is not best-effort: then they share its process.
    """
    linked: list[set[str]] = []
    for task in workload.tasks:
        previous = task.load.previous if isinstance(task.load, Dependent) else ()
        own = {task.name, *previous}
        apart = [group for group in linked if not group & own]
        linked = [*apart, own.union(*(group for group in linked if group & own))]
    best_effort = {
        name
        for group in linked
        if all(workload.task(name).job_class == BEST_EFFORT for name in group)
        for name in group
    }
    names = [task.name for task in workload.tasks]
    found = {
        is_one: [n for n in names if (n in best_effort) is is_one] for is_one in (False, True)
    }
    return [(is_one, group) for is_one, group in found.items() if group]


def _collect(
    generators: Sequence[Child],
    awaited: str,
    until_s: float,
    watch: Callable[[Counts], None] = lambda counts: None,
) -> list[Any]:
    """Return the message ``awaited`` from every generator; pass counts on the way to ``watch``.

    Raises WorkloadFailedError if one fails or sends nothing until ``until_s``.
    """
    found: dict[Child, Any] = {}
    counts: dict[str, tuple[int, int, int]] = {}
    while len(found) < len(generators):
        silent = {each.connection: each for each in generators if each not in found}
        left_s = max(0.0, until_s - time.monotonic())
        told = connection.wait(list(silent), left_s) or list(silent)[:1]
        for generator in (each for key, each in silent.items() if key in told):
            try:
                kind, message = generator.hear(0.0)
            except (TimeoutError, ConnectionError) as error:
                raise WorkloadFailedError(str(error)) from None
            if kind == "failed":
                raise WorkloadFailedError(message)
            if kind == awaited:
                found[generator] = message
            else:
                counts.update(message)
                watch(counts)
    return [found[each] for each in generators]
