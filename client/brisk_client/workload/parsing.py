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
from collections.abc import Callable, Collection, Iterator, Mapping
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

_WORKLOAD = ("time", "tasks", "seed")
_TASK = ("id", "load", "client", "class", "deadline_ms", "in_flight", "drop_stale")
_CLIENT = (
    *("name", "model_name", "model_version", "batch_size", "sizes"),
    *("tfs_grpc_addr", "triton_grpc_addr"),
)
_LOADS = {
    "periodic": ("type", "frequency", "priority", "phase_ms"),
    "poisson": ("type", "frequency", "priority"),
    "trace": ("type", "trace", "file", "begin_s", "speed", "priority"),
    "continuous": ("type", "priority"),
    "dependent": ("type", "prev_task_ids", "priority"),
}
_SUFFIXES = {"_rt": "realtime", "_be": "besteffort"}

_REQUIRED = object()


def read_workload(file: Path) -> Workload:
    """Raises ValueError naming the file, the task, the field; OSError where it is not there."""
    try:
        return parse_workload(json.loads(file.read_text()), file.parent)
    except ValueError as error:  # JSON's own errors are such, too
        raise ValueError(f"'{file}': {error}") from None


def parse_workload(document: Any, folder: Path) -> Workload:
    """``folder`` is where relative traces are. Raises ValueError naming task and field."""
    fields = _Fields(document, "workload", _WORKLOAD)
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


class _Fields:
    """One object of the document. ``place`` names it in messages: ``task 'vgg_rt', load``.

    Every method raises ValueError that says what was expected.
    """

    def __init__(self, value: Any, place: str, known: Collection[str]) -> None:
        if not isinstance(value, Mapping):
            raise ValueError(f"{place}: an object was expected, not {value!r:.60}")
        for name in value:
            if name not in known:
                near = difflib.get_close_matches(str(name), list(known), n=1)
                hint = f", did you mean '{near[0]}'?" if near else f"; it has {', '.join(known)}"
                raise ValueError(f"{place}: unknown field '{name}'{hint}")
        self._value = value
        self.place = place

    def has(self, name: str) -> bool:
        return name in self._value

    def read(
        self,
        name: str,
        expected: str = "",
        fits: Callable[[Any], bool] = lambda value: True,
        default: Any = _REQUIRED,
    ) -> Any:
        """The value, or the default where the field is not there."""
        if name not in self._value:
            if default is _REQUIRED:
                raise ValueError(f"{self.place}: field '{name}' is missing")
            return default
        value = self._value[name]
        if not fits(value):
            raise self.wrong(name, expected)
        return value

    def wrong(self, name: str, expected: str) -> ValueError:
        found = f"{self._value[name]!r:.60}"
        return ValueError(f"{self.place}: '{name}' must be {expected}, not {found}")

    def text(self, name: str, default: Any = _REQUIRED) -> str:
        return str(self.read(name, "a name", lambda v: isinstance(v, str) and v != "", default))

    def number(self, name: str, default: Any = _REQUIRED, *, above: bool = False) -> float:
        """Finite and of at least 0, or greater where ``above``."""
        expected = f"a number {'above' if above else 'of at least'} 0"

        def fits(value: Any) -> bool:
            return _is_number(value) and (value > 0 if above else value >= 0)

        return float(self.read(name, expected, fits, default))

    def count(self, name: str, default: int, *, least: int = 1) -> int:
        def fits(value: Any) -> bool:
            return isinstance(value, int) and not isinstance(value, bool) and value >= least

        return int(self.read(name, f"a whole number of at least {least}", fits, default))

    def flag(self, name: str, default: bool) -> bool:
        return bool(self.read(name, "true or false", lambda v: isinstance(v, bool), default))

    def list(self, name: str) -> list[Any]:
        return list(self.read(name, "a list", lambda v: isinstance(v, list)))


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value)


def _task(value: Any, folder: Path, duration_s: float) -> Task:
    name = value.get("id") if isinstance(value, Mapping) else None
    fields = _Fields(value, f"task '{name}'", _TASK)
    name = fields.text("id")
    client = _Fields(fields.read("client"), f"task '{name}', client", _CLIENT)
    deadline_s = None
    if fields.has("deadline_ms"):
        deadline_s = fields.number("deadline_ms", above=True) / 1e3
    sizes = client.read("sizes", "an object of shapes by input name", _are_sizes, {})
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
        sizes={input_: tuple(shape) for input_, shape in sizes.items()},
    )


def _job_class(fields: _Fields, name: str) -> str | None:
    if not fields.has("class"):
        return next((c for end, c in _SUFFIXES.items() if name.endswith(end)), None)
    try:
        return check_class(fields.text("class"))
    except ValueError as error:
        raise ValueError(f"{fields.place}: {error}") from None


def _are_sizes(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(shape, list) and all(isinstance(n, int) and n > 0 for n in shape)
        for shape in value.values()
    )


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and value != [] and all(isinstance(v, str) for v in value)


def _load(task: _Fields, folder: Path, duration_s: float) -> Load:
    value = task.read("load")
    place = f"{task.place}, load"
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind not in _LOADS:
        raise ValueError(f"{place}: 'type' must be one of {', '.join(_LOADS)}, not {kind!r:.60}")
    fields = _Fields(value, place, _LOADS[kind])
    if kind == "periodic":
        return _periodic(fields)
    if kind == "poisson":
        return Poisson(fields.number("frequency", above=True))
    if kind == "trace":
        return Trace(_arrivals_s(fields, folder, duration_s))
    if kind == "dependent":
        return Dependent(tuple(fields.read("prev_task_ids", "a list of task ids", _are_names)))
    return Continuous()


def _periodic(fields: _Fields) -> Periodic:
    """DISB coordinates periodic loads of priority 0 only; others start at once."""
    frequency_hz = fields.number("frequency", above=True)
    if fields.has("phase_ms"):
        return Periodic(frequency_hz, fields.number("phase_ms") / 1e3)
    return Periodic(frequency_hz, None if fields.number("priority", 0.0) == 0 else 0.0)


def _arrivals_s(fields: _Fields, folder: Path, duration_s: float) -> tuple[float, ...]:
    """Of a trace: those from ``begin_s`` on, ``speed`` times as fast, that the workload takes."""
    if fields.has("trace") == fields.has("file"):
        raise ValueError(f"{fields.place}: a trace has either 'trace' or 'file'")
    if fields.has("file"):
        arrivals_s = read_trace(folder / fields.text("file"))
    else:
        values = fields.list("trace")
        for value in values:
            if not _is_number(value) or value < 0:
                raise fields.wrong("trace", f"a list of milliseconds, which {value!r} is not")
        arrivals_s = sorted(value / 1e3 for value in values)
    speed, begin_s = fields.number("speed", 1.0, above=True), fields.number("begin_s", 0.0)
    moved = ((arrival_s - begin_s) / speed for arrival_s in arrivals_s if arrival_s >= begin_s)
    return tuple(arrival_s for arrival_s in moved if arrival_s < duration_s)


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


# Arrival times from files.

TIMESTAMP = "TIMESTAMP"
"""Column of the Azure LLM inference traces: ``2023-11-16 18:17:03.9799600``."""

MILLISECONDS = "arrival_ms"
"""Column of a plain trace: milliseconds from its start, as DISB's traces are."""


def read_trace(file: Path) -> list[float]:
    """Arrivals in seconds from the first one (Azure) or from the start (``arrival_ms``), sorted.

    Raises ValueError naming file and line for what is neither, OSError where it cannot be read.
    """
    with file.open(newline="") as lines:
        reader = csv.DictReader(lines)
        columns = reader.fieldnames or []
        if TIMESTAMP in columns:
            times_s = sorted(_times_s(reader, file, TIMESTAMP, _seconds, "time stamp"))
            return [time_s - times_s[0] for time_s in times_s]
        if MILLISECONDS in columns:
            wanted = "number of milliseconds"
            return sorted(_times_s(reader, file, MILLISECONDS, _milliseconds, wanted))
    raise ValueError(
        f"'{file}' is no trace: its first line must name a column {TIMESTAMP} (Azure) or "
        f"{MILLISECONDS}, not {', '.join(columns) or 'nothing'}"
    )


def _times_s(
    reader: csv.DictReader[str], file: Path, column: str, read: Callable[[str], float], wanted: str
) -> Iterator[float]:
    for row in reader:
        text = row[column] or ""
        try:
            yield read(text)
        except ValueError:
            line = f"'{file}' line {reader.line_num}"
            raise ValueError(f"{line}: '{text:.40}' is no {wanted}") from None


def _seconds(text: str) -> float:
    """Since 1970; the traces have seven decimals, of which datetime takes six."""
    whole, _, fraction = text.partition(".")
    return datetime.fromisoformat(whole).timestamp() + float(f"0.{fraction or 0}")


def _milliseconds(text: str) -> float:
    arrival_ms = float(text)
    if not 0 <= arrival_ms < math.inf:
        raise ValueError(text)
    return arrival_ms / 1e3
