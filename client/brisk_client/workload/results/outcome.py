"""What came of a run, by task: counts and times, and what the generator itself took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from brisk_client.workload.results.histogram import Histogram
from brisk_client.workload.results.rows import OK, Row


@dataclass(slots=True)
class TaskOutcome:
    """``latency``: of answered requests, from when they were due. ``lag``: see ``Row.lag_ns``.

    ``statuses`` counts requests by how they ended; ``dropped`` counts stale arrivals.
    """

    task: str
    job_class: str
    statuses: Counter[str] = field(default_factory=Counter)
    dropped: int = 0
    latency: Histogram = field(default_factory=Histogram)
    lag: Histogram = field(default_factory=Histogram)

    @property
    def answered(self) -> int:
        return self.statuses[OK]

    @property
    def failed(self) -> int:
        return self.statuses.total() - self.statuses[OK]

    def add(self, row: Row) -> None:
        self.statuses[row.status] += 1
        self.dropped += row.dropped
        self.lag.add(row.lag_ns)
        if row.status == OK:
            self.latency.add(row.latency_ns)

    def to_document(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "job_class": self.job_class,
            "statuses": dict(self.statuses),
            "dropped": self.dropped,
            "latency": self.latency.to_document(),
            "lag": self.lag.to_document(),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> TaskOutcome:
        return cls(
            task=document["task"],
            job_class=document["job_class"],
            statuses=Counter(document["statuses"]),
            dropped=document["dropped"],
            latency=Histogram.from_document(document["latency"]),
            lag=Histogram.from_document(document["lag"]),
        )


@dataclass(slots=True)
class GeneratorCost:
    """What one generator process used: processor time, and how late it sent."""

    tasks: tuple[str, ...]
    processor_s: float
    lag: Histogram


@dataclass(slots=True)
class RunOutcome:
    """``duration_s``: the workload's own. ``errors``: a few messages, with how often."""

    duration_s: float
    tasks: list[TaskOutcome]
    generators: list[GeneratorCost]
    errors: Counter[str] = field(default_factory=Counter)

    def of_class(self, job_class: str) -> TaskOutcome:
        """All tasks of a class as one."""
        merged = TaskOutcome(job_class, job_class)
        for task in self.tasks:
            if task.job_class == job_class:
                merged.statuses.update(task.statuses)
                merged.dropped += task.dropped
                merged.latency.merge(task.latency)
                merged.lag.merge(task.lag)
        return merged

    def per_s(self) -> float:
        """Answers a second, of all tasks."""
        return sum(task.answered for task in self.tasks) / self.duration_s
