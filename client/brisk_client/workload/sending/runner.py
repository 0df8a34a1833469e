"""Runs a workload: warms its models up, starts the generator processes, gathers the outcome."""

from __future__ import annotations

import contextlib
import json
import queue
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from brisk_client.workload.results.histogram import Histogram
from brisk_client.workload.results.outcome import GeneratorCost, RunOutcome, TaskOutcome
from brisk_client.workload.sending.coordination import groups
from brisk_client.workload.sending.generator import DRAIN_S
from brisk_client.workload.sending.process import GeneratorProcess, Lines
from brisk_client.workload.sending.requests import warm_up
from brisk_client.workload.spec.description import Workload
from brisk_client.workload.spec.fields import WorkloadFailedError

Counts = Mapping[str, tuple[int, int, int]]
"""By task: answered, failed, dropped, so far."""

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
    """Run all tasks against the gRPC endpoint ``url`` and return what came of it.

    ``rows``: file for a row per request (CSV, or JSON lines where it ends in ``.jsonl``).
    ``watch`` is called with counts a few times a second, from this thread. ``warm_ups``:
    requests of each task before the start. A server that goes away during the run shows as
    errors in the outcome. Raises WorkloadFailedError.
    """
    workload = warm_up(workload, url, warm_ups)
    lines: Lines = queue.Queue()
    shares = groups(workload)
    parts = [_part(rows, number) for number in range(len(shares))]
    try:
        with contextlib.ExitStack() as running:
            processes = []
            for (is_best_effort, names), part in zip(shares, parts, strict=True):
                process = running.enter_context(GeneratorProcess(names, lines))
                process.prepare(workload, url, is_best_effort, part)
                processes.append(process)
            _collect(processes, lines, "ready", time.monotonic() + _READY_TIMEOUT_S)
            begin_s = time.monotonic() + START_DELAY_S
            for process in processes:
                process.begin(begin_s)
            last_s = begin_s + workload.duration_s + DRAIN_S + _GRACE_S
            ended = _collect(processes, lines, "outcomes", last_s, watch)
        if rows is not None:
            _join(parts, rows)
    finally:
        for part in parts:
            if part is not None:
                part.unlink(missing_ok=True)
    return _outcome(workload, ended)


def _collect(
    processes: list[GeneratorProcess],
    lines: Lines,
    awaited: str,
    until_s: float,
    watch: Callable[[Counts], None] = lambda counts: None,
) -> dict[GeneratorProcess, dict[str, Any]]:
    """The line with ``awaited`` of every process; counts on the way go to ``watch``.

    Raises WorkloadFailedError where one fails or says nothing until ``until_s``.
    """
    found: dict[GeneratorProcess, dict[str, Any]] = {}
    counts: dict[str, tuple[int, int, int]] = {}
    while len(found) < len(processes):
        try:
            process, text = lines.get(timeout=max(0.0, until_s - time.monotonic()))
        except queue.Empty:
            silent = next(process for process in processes if process not in found)
            raise WorkloadFailedError(silent.describe_end()) from None
        line: dict[str, Any] = json.loads(text) if text else {}
        if "failed" in line:
            raise WorkloadFailedError(line["failed"])
        if awaited in line:
            found[process] = line
        elif "counts" in line:
            counts.update({name: tuple(each) for name, each in line["counts"].items()})
            watch(counts)
        elif process not in found:
            raise WorkloadFailedError(process.describe_end())
    return found


def _outcome(
    workload: Workload, ended: Mapping[GeneratorProcess, Mapping[str, Any]]
) -> RunOutcome:
    errors: Counter[str] = Counter()
    for line in ended.values():
        errors.update(line["errors"])
    return RunOutcome(
        workload.duration_s,
        [TaskOutcome.from_document(each) for line in ended.values() for each in line["outcomes"]],
        [
            GeneratorCost(
                tuple(process.names), line["processor_s"], Histogram.from_document(line["lag"])
            )
            for process, line in ended.items()
        ],
        errors,
    )


def _part(rows: Path | None, number: int) -> Path | None:
    """The file that a generator writes beside the whole one; the suffix decides the format."""
    return None if rows is None else rows.with_name(f".{number}-{rows.name}")


def _join(parts: list[Path | None], rows: Path) -> None:
    """One file of all parts, the header once."""
    with rows.open("w") as output:
        for number, part in enumerate(parts):
            assert part is not None
            with part.open() as lines:
                if number and rows.suffix != ".jsonl":
                    next(lines)
                shutil.copyfileobj(lines, output)
