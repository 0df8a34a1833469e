"""A workload as the JSON that ``parsing`` reads."""

from __future__ import annotations

from typing import Any

from brisk_client.workload.spec.description import (
    Dependent,
    Load,
    Periodic,
    Poisson,
    Task,
    Trace,
    Workload,
)


def to_document(workload: Workload) -> dict[str, Any]:
    """``parse_workload`` of it gives the workload back, but for classes that ids imply."""
    return {
        "time": workload.duration_s,
        "seed": workload.seed,
        "tasks": [_task(task) for task in workload.tasks],
    }


def _task(task: Task) -> dict[str, Any]:
    client: dict[str, Any] = {"model_name": task.model, "batch_size": task.batch_size}
    if task.version:
        client["model_version"] = task.version
    if task.sizes:
        client["sizes"] = {name: list(shape) for name, shape in task.sizes.items()}
    document: dict[str, Any] = {
        "id": task.name,
        "load": _load(task.load),
        "client": client,
        "in_flight": task.in_flight,
        "drop_stale": task.drops_stale,
    }
    if task.job_class is not None:
        document["class"] = task.job_class
    if task.deadline_s is not None:
        document["deadline_ms"] = task.deadline_s * 1e3
    return document


def _load(load: Load) -> dict[str, Any]:
    if isinstance(load, Periodic):
        phase = {} if load.phase_s is None else {"phase_ms": load.phase_s * 1e3}
        return {"type": "periodic", "frequency": load.frequency_hz, **phase}
    if isinstance(load, Poisson):
        return {"type": "poisson", "frequency": load.frequency_hz}
    if isinstance(load, Trace):
        return {"type": "trace", "trace": [arrival_s * 1e3 for arrival_s in load.arrivals_s]}
    if isinstance(load, Dependent):
        return {"type": "dependent", "prev_task_ids": list(load.previous)}
    return {"type": "continuous"}
