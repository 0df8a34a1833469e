"""Workload files: DISB's JSON, and the fields that Brisk's runner adds to it.

Added, all optional: ``seed`` of the workload; of a task ``class``, ``deadline_ms``,
``in_flight``, ``drop_stale``; of a periodic load ``phase_ms``; of a trace ``file`` (in place of
``trace``; relative to the workload's file), ``begin_s``, ``speed``; of a client
``model_version``, ``sizes`` (shapes by input name). A task without ``class`` whose id ends in
``_rt`` is ``realtime``, in ``_be`` ``besteffort``: so DISB's own files name them.
"""

from __future__ import annotations

import csv
import difflib
import json
import math
import sys
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from brisk_client.urgency import check_class
from brisk_client.workload.description import (
    Continuous,
    Dependent,
    Load,
    Periodic,
    Poisson,
    Task,
    Trace,
    Workload,
)

Kind = tuple[str, Callable[[Any], bool]]
"""A kind of value, in words and as a test."""


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max  # no NaN, and no int beyond a float


def _is_count(value: Any, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _are_sizes(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(shape, list) and all(map(_is_count, shape)) for shape in value.values()
    )


def _are_names(value: Any) -> bool:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        return False
    return 0 < len(value) == len(set(value))


_ANY: Kind = ("", lambda value: True)
_NAME: Kind = ("a name", lambda value: isinstance(value, str) and value != "")
_ABOVE: Kind = ("a number above 0", lambda value: _is_number(value) and value > 0)
_NUMBER: Kind = ("a number of at least 0", lambda value: _is_number(value) and value >= 0)
_COUNT: Kind = ("a whole number of at least 1", _is_count)
_SEED: Kind = ("a whole number of at least 0", lambda value: _is_count(value, 0))
_FLAG: Kind = ("true or false", lambda value: isinstance(value, bool))
_LIST: Kind = ("a list", lambda value: isinstance(value, list))
_NAMES: Kind = ("a list of task ids, each once", _are_names)
_SIZES: Kind = ("an object of shapes by input name", _are_sizes)

Fields = Mapping[str, tuple[Kind, Any]]
"""Fields by name: the kind of each, and its default; ``...`` if it has none and is required."""

_WORKLOAD: Fields = {"time": (_ABOVE, ...), "tasks": (_LIST, ...), "seed": (_SEED, 0)}
_TASK: Fields = {
    "id": (_NAME, ...),
    "load": (_ANY, ...),
    "client": (_ANY, ...),
    "class": (_NAME, None),
    "deadline_ms": (_ABOVE, None),
    "in_flight": (_COUNT, 1),
    "drop_stale": (_FLAG, True),
}
_CLIENT: Fields = {
    "name": (_ANY, None),
    "model_name": (_NAME, ...),
    "model_version": (_NAME, ""),
    "batch_size": (_COUNT, 1),
    "sizes": (_SIZES, {}),
    "tfs_grpc_addr": (_ANY, None),
    "triton_grpc_addr": (_ANY, None),
}
_EVERY: Fields = {"type": (_ANY, ...), "priority": (_NUMBER, 0)}
_LOADS: dict[str, Fields] = {
    "periodic": {"frequency": (_ABOVE, ...), "phase_ms": (_NUMBER, None), **_EVERY},
    "poisson": {"frequency": (_ABOVE, ...), **_EVERY},
    "trace": {
        "trace": (_LIST, None),
        "file": (_NAME, None),
        "begin_s": (_NUMBER, 0.0),
        "speed": (_ABOVE, 1.0),
        **_EVERY,
    },
    "continuous": _EVERY,
    "dependent": {"prev_task_ids": (_NAMES, ...), **_EVERY},
}
_SUFFIXES = {"_rt": "realtime", "_be": "besteffort"}


def read_workload(file: Path) -> Workload:
    """Return the workload in ``file``. Raises ValueError that names file, task and field, and
    OSError if the file cannot be read."""
    try:
        return parse_workload(json.loads(file.read_text()), file.parent)
    except ValueError as error:  # JSON's own errors are such, too
        raise ValueError(f"'{file}': {error}") from None


def parse_workload(document: Any, folder: Path) -> Workload:
    """Return the workload that ``document``, parsed JSON, describes.

    ``folder``: the folder of relative traces. Raises ValueError that names task and field.
    """
    found = _read(document, "workload", _WORKLOAD)
    duration_s = float(found["time"])
    tasks = tuple(_task(value, folder, duration_s) for value in found["tasks"])
    if not tasks:
        raise ValueError("workload: it has no tasks")
    names = [task.name for task in tasks]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"workload: two tasks have the id '{name}'")
    _check_dependencies(tasks)
    return Workload(duration_s, tasks, found["seed"])


def _read(value: Any, place: str, fields: Fields) -> dict[str, Any]:
    """Return all ``fields`` of an object. Raises ValueError with ``place`` and the expectation."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{place}: an object was expected, not {value!r:.60}")
    for name in value:
        if name not in fields:
            near = difflib.get_close_matches(str(name), list(fields), n=1)
            hint = f", did you mean '{near[0]}'?" if near else f"; it has {', '.join(fields)}"
            raise ValueError(f"{place}: unknown field '{name}'{hint}")
    for name, ((expected, fits), default) in fields.items():
        if name not in value:
            if default is ...:
                raise ValueError(f"{place}: field '{name}' is missing")
        elif not fits(value[name]):
            found = f"{value[name]!r:.60}"
            raise ValueError(f"{place}: '{name}' must be {expected}, not {found}")
    return {name: value.get(name, default) for name, (_, default) in fields.items()}


def _task(value: Any, folder: Path, duration_s: float) -> Task:
    name = value.get("id") if isinstance(value, Mapping) else None
    place = f"task '{name}'"
    found = _read(value, place, _TASK)
    client = _read(found["client"], f"{place}, client", _CLIENT)
    job_class = found["class"]
    if job_class is None:
        job_class = next((c for end, c in _SUFFIXES.items() if found["id"].endswith(end)), None)
    else:
        try:
            check_class(job_class)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None
    return Task(
        name=found["id"],
        model=client["model_name"],
        version=client["model_version"],
        load=_load(found["load"], f"{place}, load", folder, duration_s),
        job_class=job_class,
        deadline_s=None if found["deadline_ms"] is None else found["deadline_ms"] / 1e3,
        batch_size=client["batch_size"],
        in_flight=found["in_flight"],
        drops_stale=found["drop_stale"],
        sizes={input_: tuple(shape) for input_, shape in client["sizes"].items()},
    )


def _load(value: Any, place: str, folder: Path, duration_s: float) -> Load:
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind not in _LOADS:
        raise ValueError(f"{place}: 'type' must be one of {', '.join(_LOADS)}, not {kind!r:.60}")
    found = _read(value, place, _LOADS[kind])
    if kind == "periodic":
        # DISB coordinates periodic loads of priority 0 only; others start at once.
        phase_s = None if found["priority"] == 0 else 0.0
        if found["phase_ms"] is not None:
            phase_s = found["phase_ms"] / 1e3
        return Periodic(float(found["frequency"]), phase_s)
    if kind == "poisson":
        return Poisson(float(found["frequency"]))
    if kind == "trace":
        return Trace(_arrivals_s(found, place, folder, duration_s))
    if kind == "dependent":
        return Dependent(tuple(found["prev_task_ids"]))
    return Continuous()


def _arrivals_s(
    found: Mapping[str, Any], place: str, folder: Path, duration_s: float
) -> tuple[float, ...]:
    """Return a trace's arrivals from ``begin_s`` on, ``speed`` times as fast, within
    ``duration_s``. Raises ValueError and OSError."""
    values, file = found["trace"], found["file"]
    if (values is None) == (file is None):
        raise ValueError(f"{place}: a trace has either 'trace' or 'file'")
    if file is not None:
        arrivals_s = read_trace(folder / file)
    else:
        for value in values:
            if not _is_number(value) or value < 0:
                raise ValueError(
                    f"{place}: 'trace' must be a list of milliseconds, which {value!r} is not"
                )
        arrivals_s = sorted(value / 1e3 for value in values)
    begin_s = found["begin_s"]
    moved = (
        (arrival_s - begin_s) / found["speed"] for arrival_s in arrivals_s if arrival_s >= begin_s
    )
    return tuple(arrival_s for arrival_s in moved if arrival_s < duration_s)


def _check_dependencies(tasks: tuple[Task, ...]) -> None:
    """Check that every dependency names a task, and that no tasks wait for each other.

    Raises ValueError.
    """
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


def read_trace(file: Path) -> list[float]:
    """Return arrivals, sorted, in seconds from the first (Azure) or the start (``arrival_ms``).

    Raises ValueError that names file and line if it is neither, OSError if it cannot be read.
    """
    with file.open(newline="") as lines:
        reader = csv.DictReader(lines)
        columns = reader.fieldnames or []
        column = next((name for name in _COLUMNS if name in columns), None)
        if column is None:
            raise ValueError(
                f"'{file}' is no trace: its first line must name a column TIMESTAMP (Azure) or "
                f"arrival_ms, not {', '.join(columns) or 'nothing'}"
            )
        read, wanted = _COLUMNS[column]
        times_s = []
        for row in reader:
            text = row[column] or ""
            try:
                times_s.append(read(text))
            except ValueError:
                line = f"'{file}' line {reader.line_num}"
                raise ValueError(f"{line}: '{text:.40}' is no {wanted}") from None
    first_s = min(times_s, default=0.0) if column == "TIMESTAMP" else 0.0
    return sorted(time_s - first_s for time_s in times_s)


def _seconds(text: str) -> float:
    """Return seconds since 1970. Traces have seven decimals, of which datetime takes six."""
    whole, _, fraction = text.partition(".")
    return datetime.fromisoformat(whole).timestamp() + float(f"0.{fraction or 0}")


def _milliseconds(text: str) -> float:
    arrival_ms = float(text)
    if not 0 <= arrival_ms < math.inf:
        raise ValueError(text)
    return arrival_ms / 1e3


_COLUMNS: dict[str, tuple[Callable[[str], float], str]] = {
    "TIMESTAMP": (_seconds, "time stamp"),
    "arrival_ms": (_milliseconds, "number of milliseconds"),
}
"""Columns of a trace's file: the function that reads each, and what it has to be. They are those
of the Azure LLM inference traces (``2023-11-16 18:17:03.9799600``) and milliseconds from the
start, as in DISB's traces."""
