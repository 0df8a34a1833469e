"""The workloads of DISB (REEF, table 2) in the paper's own numbers, and their scaling."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from brisk_bench.disb.networks import NETWORKS
from brisk_client.workload.description import (
    Continuous,
    Load,
    Periodic,
    Poisson,
    Task,
    Trace,
    Workload,
)
from brisk_client.workload.parsing import read_workload
from brisk_client.workload.requests import coordinate

DURATION_S = 60.0

REAL = "REAL"

DISB_NETWORKS = {
    "resnet152-imagenet": "resnet",
    "densenet201-imagenet": "densenet",
    "vgg19-imagenet": "vgg",
    "inceptionv3-imagenet": "inception",
    "distilbert": "bert",
}
"""The network that stands for each model that DISB's files name."""


def _realtime(load: Load, *networks: str) -> list[Task]:
    return [Task(f"{name}_rt", name, load, job_class="realtime") for name in networks]


def _best_effort(*networks: str) -> list[Task]:
    return [Task(f"{name}_be", name, Continuous(), job_class="besteffort") for name in networks]


_ALL = tuple(NETWORKS)

WORKLOADS: Mapping[str, Workload] = {
    name: Workload(DURATION_S, tuple(tasks))
    for name, tasks in {
        "A": _realtime(Periodic(100.0), "vgg") + _best_effort("resnet"),
        "B": _realtime(Periodic(220.0), "vgg") + _best_effort("resnet"),
        "C": _realtime(Periodic(100.0), "vgg") + _best_effort(*_ALL),
        "D": _realtime(Periodic(20.0), *_ALL) + _best_effort(*_ALL),
        "E": _realtime(Poisson(20.0), *_ALL) + _best_effort(*_ALL),
    }.items()
}
"""Workloads by name. A: low load; B: high real-time load; C: high best-effort load; D: several
real-time clients; E: random arrivals. (B is 220 requests a second in table 2; DISB's own file has
a closed loop.)"""


def read_real(file: Path) -> Workload:
    """Read DISB's ``REAL.json``, with our networks in place of its models.

    Raises ValueError as ``read_workload`` does, or if it asks another model; OSError.
    """
    workload = read_workload(file)
    for task in workload.tasks:
        if task.model not in DISB_NETWORKS:
            names = ", ".join(DISB_NETWORKS)
            raise ValueError(f"'{file}': task '{task.name}' asks '{task.model}', not {names}")
    tasks = tuple(replace(task, model=DISB_NETWORKS[task.model]) for task in workload.tasks)
    return replace(workload, tasks=tasks)


def demand(workload: Workload, cost_s: Mapping[str, float]) -> float:
    """Return the share of the device that open-loop tasks need: requests a second times cost.

    ``cost_s``: of their networks at least; closed loops take what is left.
    """
    return sum(
        frequency_hz * cost_s[task.model]
        for task in workload.tasks
        if (frequency_hz := _frequency_hz(task.load, workload.duration_s))
    )


def slow_down(workload: Workload, factor: float, duration_s: float) -> Workload:
    """Return the workload's first ``duration_s``, arrivals ``factor`` times as far apart."""
    tasks = tuple(
        replace(task, load=_slowed(task.load, factor, duration_s)) for task in workload.tasks
    )
    return replace(workload, tasks=tasks, duration_s=duration_s)


def fit(
    workload: Workload, alone_s: Mapping[str, float], duration_s: float, least_requests: int = 0
) -> tuple[Workload, float]:
    """Return the workload as this machine should see it, and by which factor it was slowed down.

    ``alone_s``: measured latency of each real-time network alone. The factor makes the open-loop
      tasks need as much of this machine as they need of the paper's with table 1's times. Phases
      are fixed, so that every side of a comparison meets the same arrivals. The workload lasts
      longer, twice ``duration_s`` at most, if these tasks would otherwise send fewer than
      ``least_requests``.
    """
    paper_s = {name: network.paper_ms / 1e3 for name, network in NETWORKS.items()}
    factor = demand(workload, alone_s) / demand(workload, paper_s)
    frequency_hz = sum(_frequency_hz(t.load, workload.duration_s) for t in workload.tasks) / factor
    longer_s = min(2 * duration_s, least_requests / frequency_hz)
    fitted = slow_down(workload, factor, max(duration_s, longer_s))
    each_s = {task.name: alone_s[task.model] for task in fitted.tasks if task.model in alone_s}
    return coordinate(fitted, each_s), factor


def laps(workload: Workload, lap_s: float) -> list[Workload]:
    """Split the workload into parts of equal length, about ``lap_s`` each, to be run one by one.

    Each has arrivals of its own: the part's of a trace, others from another seed.
    """
    count = max(1, round(workload.duration_s / lap_s))
    part_s = workload.duration_s / count
    return [
        replace(
            workload,
            duration_s=part_s,
            seed=workload.seed + number,
            tasks=tuple(
                replace(task, load=_cut(task.load, number * part_s, part_s))
                for task in workload.tasks
            ),
        )
        for number in range(count)
    ]


def realtime_only(workload: Workload) -> Workload:
    tasks = tuple(task for task in workload.tasks if task.job_class == "realtime")
    return replace(workload, tasks=tasks)


def due_before_the_next(workload: Workload) -> Workload:
    """Give real-time requests that come at a frequency a deadline of its period."""
    tasks = tuple(
        replace(task, deadline_s=1 / task.load.frequency_hz)
        if task.job_class == "realtime" and isinstance(task.load, (Periodic, Poisson))
        else task
        for task in workload.tasks
    )
    return replace(workload, tasks=tasks)


def _frequency_hz(load: Load, duration_s: float) -> float:
    if isinstance(load, (Periodic, Poisson)):
        return load.frequency_hz
    return len(load.arrivals_s) / duration_s if isinstance(load, Trace) else 0.0


def _cut(load: Load, begin_s: float, duration_s: float) -> Load:
    if not isinstance(load, Trace):
        return load
    moved = (arrival_s - begin_s for arrival_s in load.arrivals_s)
    return Trace(tuple(arrival_s for arrival_s in moved if 0 <= arrival_s < duration_s))


def _slowed(load: Load, factor: float, duration_s: float) -> Load:
    if isinstance(load, (Periodic, Poisson)):
        return replace(load, frequency_hz=load.frequency_hz / factor)
    if isinstance(load, Trace):
        moved = (arrival_s * factor for arrival_s in load.arrivals_s)
        return Trace(tuple(arrival_s for arrival_s in moved if arrival_s < duration_s))
    return load
