"""The parts of a workload: tasks, each a client of one model with its pattern of requests.

After DISB (REEF, section 7.1 and table 2; github.com/SJTU-IPADS/disb).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias


class WorkloadFailedError(Exception):
    """The workload could not be started, or a generator died; the text says why."""


@dataclass(frozen=True, slots=True)
class Periodic:
    """A request every ``1 / frequency_hz`` seconds, the first one ``phase_s`` after the start.

    ``phase_s`` None: the runner chooses it. Periodic tasks of one frequency then follow each
    other by their stand-alone latencies, so that they do not collide (DISB's coordinator).
    """

    frequency_hz: float
    phase_s: float | None = None


@dataclass(frozen=True, slots=True)
class Poisson:
    """Independent arrivals, ``frequency_hz`` a second on average."""

    frequency_hz: float


@dataclass(frozen=True, slots=True)
class Trace:
    """Arrivals at given times, in seconds from the start, ascending."""

    arrivals_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Continuous:
    """Closed loop: the next request as soon as the last one is answered."""


@dataclass(frozen=True, slots=True)
class Dependent:
    """A request whenever every task of ``previous`` has had its next answer."""

    previous: tuple[str, ...]


Load: TypeAlias = "Periodic | Poisson | Trace | Continuous | Dependent"


@dataclass(frozen=True, slots=True)
class Task:
    """One client of one model.

    ``job_class``: None leaves it to the model's entry.
    ``in_flight``: the most requests that it has at once.
    ``drops_stale``: when a request is due, earlier ones that could not be sent are dropped, like a
    camera's old frames; else they are sent late, in order.
    ``sizes``: shapes of inputs whose sizes the model leaves open, by input name, without the
    batch.
    """

    name: str
    model: str
    load: Load
    version: str = ""
    job_class: str | None = None
    deadline_s: float | None = None
    batch_size: int = 1
    in_flight: int = 1
    drops_stale: bool = True
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Workload:
    """All ``tasks`` run together for ``duration_s``. ``seed``: for arrivals and inputs."""

    duration_s: float
    tasks: tuple[Task, ...]
    seed: int = 0

    def task(self, name: str) -> Task:
        """Return the task of this name. Raises KeyError if there is none."""
        for task in self.tasks:
            if task.name == name:
                return task
        raise KeyError(name)
