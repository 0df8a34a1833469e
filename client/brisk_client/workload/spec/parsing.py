"""Workload files: DISB's JSON, and the fields that Brisk's runner adds to it.

Added, all optional: ``seed`` of the workload; of a task ``class``, ``deadline_ms``,
``in_flight``, ``drop_stale``; of a periodic load ``phase_ms``; of a trace ``file`` (in place of
``trace``; relative to the workload's file), ``begin_s``, ``speed``; of a client
``model_version``, ``sizes`` (shapes by input name). A task without ``class`` whose id ends in
``_rt`` is ``realtime``, in ``_be`` ``besteffort``: so DISB's own files name them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from brisk_client.urgency import check_class
from brisk_client.workload.spec.description import (
    Continuous,
    Dependent,
    Load,
    Periodic,
    Poisson,
    Task,
    Trace,
    Workload,
)
from brisk_client.workload.spec.fields import WorkloadFields
from brisk_client.workload.spec.traces import read_trace, window

_WORKLOAD = ("time", "tasks", "seed")
_TASK = ("id", "load", "client", "class", "deadline_ms", "in_flight", "drop_stale")
_CLIENT = (
    "name",
    "model_name",
    "model_version",
    "batch_size",
    "sizes",
    "tfs_grpc_addr",
    "triton_grpc_addr",
)
_LOADS = {
    "periodic": ("type", "frequency", "priority", "phase_ms"),
    "poisson": ("type", "frequency", "priority"),
    "trace": ("type", "trace", "file", "begin_s", "speed", "priority"),
    "continuous": ("type", "priority"),
    "dependent": ("type", "prev_task_ids", "priority"),
}
_SUFFIXES = {"_rt": "realtime", "_be": "besteffort"}


def read_workload(file: Path) -> Workload:
    """Raises ValueError naming the file, the task, the field; OSError where it is not there."""
    try:
        return parse_workload(json.loads(file.read_text()), file.parent)
    except ValueError as error:  # JSON's own errors are such, too
        raise ValueError(f"'{file}': {error}") from None


def parse_workload(document: Any, folder: Path) -> Workload:
    """``folder`` is where relative traces are. Raises ValueError naming task and field."""
    fields = WorkloadFields(document, "workload", _WORKLOAD)
    duration_s = fields.number("time", above=True)
    tasks = tuple(_task(value, folder, duration_s) for value in fields.list("tasks"))
    if not tasks:
        raise ValueError("workload: it has no tasks")
    names = [task.name for task in tasks]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"workload: two tasks have the id '{name}'")
    _check_dependencies(tasks)
    return Workload(duration_s, tasks, fields.count("seed", 0, least=0))


def _task(value: Any, folder: Path, duration_s: float) -> Task:
    name = value.get("id") if isinstance(value, Mapping) else None
    fields = WorkloadFields(value, f"task '{name}'", _TASK)
    name = fields.text("id")
    client = WorkloadFields(fields.any("client"), f"task '{name}', client", _CLIENT)
    deadline_s = None
    if fields.has("deadline_ms"):
        deadline_s = fields.number("deadline_ms", above=True) / 1e3
    return Task(
        name=name,
        model=client.text("model_name"),
        version=client.text("model_version", ""),
        load=_load(fields, folder, duration_s),
        job_class=_job_class(fields, name),
        deadline_s=deadline_s,
        batch_size=client.count("batch_size", 1),
        in_flight=fields.count("in_flight", 1),
        drops_stale=fields.flag("drop_stale", True),
        sizes=_sizes(client),
    )


def _job_class(fields: WorkloadFields, name: str) -> str | None:
    if not fields.has("class"):
        return next((c for end, c in _SUFFIXES.items() if name.endswith(end)), None)
    try:
        return check_class(fields.text("class"))
    except ValueError as error:
        raise ValueError(f"{fields.place}: {error}") from None


def _sizes(client: WorkloadFields) -> dict[str, tuple[int, ...]]:
    if not client.has("sizes"):
        return {}
    value = client.any("sizes")
    is_right = isinstance(value, Mapping) and all(
        isinstance(shape, list) and all(isinstance(n, int) and n > 0 for n in shape)
        for shape in value.values()
    )
    if not is_right:
        raise client.wrong("sizes", "an object of shapes by input name")
    return {name: tuple(shape) for name, shape in value.items()}


def _load(task: WorkloadFields, folder: Path, duration_s: float) -> Load:
    value = task.any("load")
    place = f"{task.place}, load"
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind not in _LOADS:
        raise ValueError(f"{place}: 'type' must be one of {', '.join(_LOADS)}, not {kind!r:.60}")
    fields = WorkloadFields(value, place, _LOADS[kind])
    if kind == "periodic":
        return _periodic(fields)
    if kind == "poisson":
        return Poisson(fields.number("frequency", above=True))
    if kind == "trace":
        return Trace(_arrivals_s(fields, folder, duration_s))
    if kind == "dependent":
        return Dependent(_names(fields))
    return Continuous()


def _periodic(fields: WorkloadFields) -> Periodic:
    """DISB coordinates periodic loads of priority 0 only; others start at once."""
    frequency_hz = fields.number("frequency", above=True)
    if fields.has("phase_ms"):
        return Periodic(frequency_hz, fields.number("phase_ms") / 1e3)
    return Periodic(frequency_hz, None if fields.number("priority", 0.0) == 0 else 0.0)


def _arrivals_s(fields: WorkloadFields, folder: Path, duration_s: float) -> tuple[float, ...]:
    if fields.has("trace") == fields.has("file"):
        raise ValueError(f"{fields.place}: a trace has either 'trace' or 'file'")
    if fields.has("file"):
        arrivals_s = read_trace(folder / fields.text("file"))
    else:
        values = fields.list("trace")
        for value in values:
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
                raise fields.wrong("trace", f"a list of milliseconds, which {value!r} is not")
        arrivals_s = tuple(sorted(value / 1e3 for value in values))
    speed = fields.number("speed", 1.0, above=True)
    return window(arrivals_s, fields.number("begin_s", 0.0), speed, duration_s)


def _names(fields: WorkloadFields) -> tuple[str, ...]:
    names = fields.list("prev_task_ids")
    if not names or not all(isinstance(name, str) for name in names):
        raise fields.wrong("prev_task_ids", "a list of task ids")
    return tuple(names)


def _check_dependencies(tasks: tuple[Task, ...]) -> None:
    """Every dependency names a task, and none waits for itself, however far around."""
    previous = {t.name: t.load.previous for t in tasks if isinstance(t.load, Dependent)}
    known = {task.name for task in tasks}
    for name, needed in previous.items():
        for other in needed:
            if other not in known:
                raise ValueError(f"task '{name}', load: there is no task '{other}' to follow")
    free = known - set(previous)
    while ready := {n for n, needed in previous.items() if n not in free and set(needed) <= free}:
        free |= ready
    if circle := sorted(known - free):
        raise ValueError(f"tasks {', '.join(circle)} wait for each other")
