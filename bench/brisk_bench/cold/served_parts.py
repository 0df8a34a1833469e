"""The parts of the time to a first answer through Triton: stub, parse, load and run.

The four follow one another from the load call to the first answer, and their sum is that time. All
times are CLOCK_MONOTONIC, which every process of a machine shares.

* ``parse``: the model is read until its parts are known. Brisk from a prepared form: the event
  `parse` of its timeline. Brisk from the model's own file makes all sessions in the same stage,
  and the other engines read the file while they make their session: this time belongs to ``load``.
* ``load``: sessions are made while the load call or the first request waits for them. Brisk: the
  rest of the load until the model is READY, then `create` and `wait` of the first request, which
  makes sessions itself or waits for a loader thread's. Python backend: ``initialize``.
* ``run``: the first request is computed, without ``load``. Brisk: from its arrival in the worker
  to its answer there. Python backend: ``execute``.
* ``stub``: all else: Triton, the start of a stub's process with its imports, an engine's library
  among them, and the ways between client, Triton, stub and worker.

``beside`` is in none of them: what Brisk's loader threads spend on sessions concurrently.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from brisk.protocol.records import Span
from brisk.segments.table import EXECUTOR
from brisk.segments.timeline import EventKind
from brisk.telemetry.metrics import STARTS
from brisk.telemetry.observer import Observer

LOADS, REQUESTS = "load lane", "requests"
"""Threads of the worker's spans, as ``brisk.runtime`` names them in ``models.loader`` and
``requests.table``."""

REPORT_S = 10.0
"""The longest wait for a worker's report of a start. It comes when requests leave the worker time,
a second later at most."""

_LOOK_S = 0.05


class UnknownPartsError(Exception):
    """The records of a first answer do not show its parts."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of the time to a first answer, in seconds.

    ``parse_s``: None if it cannot be separated from ``load_s``.
    ``beside_s``: session creation in all loader threads, concurrent with the parts; 0 without any.
    """

    stub_s: float
    parse_s: float | None
    load_s: float
    run_s: float
    beside_s: float = 0.0


def part_columns(parts: Sequence[Parts]) -> dict[str, float | None]:
    """Return the columns of a report's row: medians over rounds, in ms."""
    parse_s = [each.parse_s for each in parts if each.parse_s is not None]
    return {
        "stub_ms": statistics.median(each.stub_s for each in parts) * 1e3,
        "parse_ms": statistics.median(parse_s) * 1e3 if parse_s else None,
        "load_ms": statistics.median(each.load_s for each in parts) * 1e3,
        "run_ms": statistics.median(each.run_s for each in parts) * 1e3,
        "beside_ms": statistics.median(each.beside_s for each in parts) * 1e3,
    }


# Brisk: what the worker records while an observer is connected.


def begin_recording(observer: Observer) -> None:
    """Make the worker record spans, from the return of this call on."""
    observer.begin_trace()
    observer.status()  # its answer comes after that to earlier messages


def end_recording(observer: Observer, model: str) -> tuple[list[Span], str]:
    """Return the recorded spans, with those of the model's start, and what it started from.

    Raises UnknownPartsError if the worker reports no start within REPORT_S.
    """
    until_s = time.monotonic() + REPORT_S
    while (origin := _origin(observer, model)) is None:
        if time.monotonic() > until_s:
            raise UnknownPartsError(f"the worker reports no start of '{model}'")
        time.sleep(_LOOK_S)
    time.sleep(_LOOK_S)  # it counts the start just before it adds the spans
    return observer.end_trace(), origin


def _origin(observer: Observer, model: str) -> str | None:
    """Return the start's origin, ``artefact`` or ``model``; None before it is reported."""
    for sample in observer.statistics():
        if sample.metric == STARTS.name and sample.labels[0] == model:
            return sample.labels[2]
    return None


def parts_of_brisk(
    spans: Iterable[Span], model: str, origin: str, begin_ns: int, first_ns: int
) -> Parts:
    """Return the parts of entry ``model``, called at ``begin_ns`` and answered at ``first_ns``.

    Raises UnknownPartsError if its load or its first request is not among the spans.
    """
    file = f"/{model}/1/model.onnx"
    all_spans = list(spans)
    load = _first(all_spans, LOADS, lambda span: span.request.endswith(file), model)
    request = _first(all_spans, REQUESTS, lambda span: span.name.startswith(f"{model} 1,"), model)
    own = [span for span in all_spans if span.request.endswith(file) and span is not load]
    parse_ns: int | None = None
    if origin == "artefact":
        parse_ns = sum(_length_ns(span) for span in own if span.name == EventKind.PARSE.value)
    awaited_ns = sum(
        _length_ns(span)
        for span in own
        if span.lane == EXECUTOR and request.begin_ns <= span.begin_ns < request.end_ns
    )
    beside_ns = sum(
        _length_ns(span)
        for span in own
        if span.lane != EXECUTOR and span.name.startswith(f"{EventKind.CREATE.value} ")
    )
    load_ns = _length_ns(load) - (parse_ns or 0) + awaited_ns
    run_ns = _length_ns(request) - awaited_ns
    return _parts(first_ns - begin_ns, parse_ns, load_ns, run_ns, beside_ns)


def _first(spans: Iterable[Span], lane: str, fits: Callable[[Span], bool], model: str) -> Span:
    fitting = [span for span in spans if span.lane == lane and fits(span)]
    if not fitting:
        raise UnknownPartsError(f"the worker recorded nothing of '{model}' in '{lane}'")
    return min(fitting, key=lambda span: span.begin_ns)


def _length_ns(span: Span) -> int:
    return span.end_ns - span.begin_ns


# The Python backend: the model notes when Triton calls it, and writes that when it is unloaded.

_NOTING = '''

import json
import time


class TritonPythonModel(TritonPythonModel):
    """The same, which notes when it begins and ends what."""

    def initialize(self, args):
        begin_ns = time.monotonic_ns()
        super().initialize(args)
        self.stamps = {{"initialize": [begin_ns, time.monotonic_ns()]}}

    def execute(self, requests):
        begin_ns = time.monotonic_ns()
        responses = super().execute(requests)
        self.stamps.setdefault("execute", [begin_ns, time.monotonic_ns()])
        return responses

    def finalize(self):
        with open({stamps!r}, "w") as file:
            json.dump(self.stamps, file)
'''


def noting(source: str) -> str:
    """Add the noting of times to the ``source`` of a Python model.

    The result is to be formatted with ``stamps``, the file that the model writes.
    """
    return source + _NOTING


def parts_of_python(stamps: Mapping[str, Sequence[int]], begin_ns: int, first_ns: int) -> Parts:
    """Return the parts by a model's stamps. Raises UnknownPartsError if one is missing."""
    try:
        load_ns, run_ns = (end - begin for begin, end in (stamps[name] for name in _CALLS))
    except KeyError as missing:
        raise UnknownPartsError(f"the model noted no {missing}") from missing
    return _parts(first_ns - begin_ns, None, load_ns, run_ns)


_CALLS = ("initialize", "execute")


def read_stamps(file: Path) -> Mapping[str, Sequence[int]]:
    """Read what the model noted. Raises UnknownPartsError if it wrote no valid file."""
    try:
        stamps: Mapping[str, Sequence[int]] = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise UnknownPartsError(f"the model told no times: {error}") from error
    return stamps


def _parts(
    whole_ns: int, parse_ns: int | None, load_ns: int, run_ns: int, beside_ns: int = 0
) -> Parts:
    stub_ns = whole_ns - (parse_ns or 0) - load_ns - run_ns
    if min(stub_ns, parse_ns or 0, load_ns, run_ns) < 0:
        raise UnknownPartsError(
            f"of {whole_ns} ns to the first answer {parse_ns} are parse, {load_ns} load, "
            f"{run_ns} run"
        )
    parse_s = None if parse_ns is None else parse_ns / 1e9
    return Parts(stub_ns / 1e9, parse_s, load_ns / 1e9, run_ns / 1e9, beside_ns / 1e9)
