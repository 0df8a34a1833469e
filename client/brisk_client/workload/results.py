"""The results of a run: a row for each request, counts and times by task."""

from __future__ import annotations

import csv
import json
from array import array
from collections import Counter
from dataclasses import dataclass, field, fields
from pathlib import Path

from brisk_client.workload.requests import ANSWER_TIMEOUT_S

OK = "ok"
UNFINISHED = "unfinished"

MISSED_NS = round(ANSWER_TIMEOUT_S * 1e9)
"""The least time that a failed request counts: as long as a client waits for an answer."""


@dataclass(frozen=True, slots=True)
class Row:
    """A request that has ended. Times are ns from the run's start.

    ``scheduled_ns``: when it was due; latency counts from here.
    ``free_ns``: when its client could have sent it.
    ``status``: ``ok``, ``unfinished`` (the run was over), or a gRPC status.
    ``dropped_ns``: the due times of the stale arrivals that were dropped just before it.
    """

    task: str
    job_class: str
    model: str
    serial: int
    scheduled_ns: int
    free_ns: int
    sent_ns: int
    done_ns: int
    status: str
    dropped_ns: tuple[int, ...] = ()

    @property
    def dropped(self) -> int:
        return len(self.dropped_ns)

    @property
    def latency_ns(self) -> int:
        return self.done_ns - self.scheduled_ns

    @property
    def lag_ns(self) -> int:
        """The generator's own delay, from when it could and should have sent."""
        return self.sent_ns - max(self.scheduled_ns, self.free_ns)


COLUMNS = (*(each.name for each in fields(Row) if each.name != "dropped_ns"), "dropped")
"""Columns of a file of rows; of the dropped arrivals it has the count."""


def begin_rows(file: Path) -> None:
    """Make the file that ``RowWriter`` appends to. Raises OSError if it cannot be made."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as output:
        if file.suffix != ".jsonl":
            csv.writer(output).writerow(COLUMNS)


class RowWriter:
    """Appends rows to a file: JSON lines if its name ends in ``.jsonl``, else CSV.

    Several processes may write to one file: each row is one write at its end.
    """

    def __init__(self, file: Path) -> None:
        self._output = file.open("a", newline="", buffering=1)
        self._csv = None if file.suffix == ".jsonl" else csv.writer(self._output)

    def write(self, row: Row) -> None:
        values = {name: getattr(row, name) for name in COLUMNS}
        if self._csv is None:
            self._output.write(json.dumps(values) + "\n")
        else:
            self._csv.writerow(values.values())

    def close(self) -> None:
        self._output.close()


@dataclass(slots=True)
class TaskOutcome:
    """The counts and times of one task.

    ``statuses``: requests by how they ended.
    ``dropped``: the number of stale arrivals.
    ``latency_ns``: of answered requests, from when they were due.
    ``missed_ns``: the same for arrivals without an answer of their own, so that not answering
    never looks faster. A dropped one counts until the end of the newer one that took its place. A
    failed request, and those dropped just before it, count MISSED_NS at least.
    ``lag_ns``: see ``Row``.

    Times are arrays: eight bytes a request, and no objects for a generator's garbage collector.
    """

    task: str
    job_class: str
    statuses: Counter[str] = field(default_factory=Counter)
    dropped: int = 0
    latency_ns: array[int] = field(default_factory=lambda: array("q"))
    missed_ns: array[int] = field(default_factory=lambda: array("q"))
    lag_ns: array[int] = field(default_factory=lambda: array("q"))

    @property
    def answered(self) -> int:
        return self.statuses[OK]

    @property
    def failed(self) -> int:
        return self.statuses.total() - self.statuses[OK]

    def add(self, row: Row) -> None:
        self.statuses[row.status] += 1
        self.dropped += row.dropped
        self.lag_ns.append(row.lag_ns)
        least_ns = 0 if row.status == OK else MISSED_NS
        self.missed_ns.extend(max(row.done_ns - due_ns, least_ns) for due_ns in row.dropped_ns)
        if row.status == OK:
            self.latency_ns.append(row.latency_ns)
        else:
            self.missed_ns.append(max(row.latency_ns, least_ns))


@dataclass(slots=True)
class GeneratorOutcome:
    """The outcome of one generator process.

    ``processor_s``: the processor time that it used.
    ``errors``: some error messages, with how often each occurred.
    """

    tasks: list[TaskOutcome]
    processor_s: float
    errors: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class RunOutcome:
    """The outcome of a run. ``duration_s``: the workload's own."""

    duration_s: float
    generators: list[GeneratorOutcome]

    @property
    def tasks(self) -> list[TaskOutcome]:
        return [task for generator in self.generators for task in generator.tasks]

    def of_class(self, job_class: str) -> TaskOutcome:
        """Return the outcomes of all tasks of a class, merged into one."""
        merged = TaskOutcome(job_class, job_class)
        for task in self.tasks:
            if task.job_class == job_class:
                merged.statuses.update(task.statuses)
                merged.dropped += task.dropped
                merged.latency_ns += task.latency_ns
                merged.missed_ns += task.missed_ns
                merged.lag_ns += task.lag_ns
        return merged

    def per_s(self, job_class: str | None = None) -> float:
        """Return the answers per second of all tasks, or of those of a class."""
        tasks = [task for task in self.tasks if job_class in (None, task.job_class)]
        return sum(task.answered for task in tasks) / self.duration_s
