"""``brisk trace``: the timeline of a cold start and of a request, as a file and a picture."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from brisk.cli.commands.models import model_file
from brisk.errors import InvalidConfigurationError, InvalidModelError
from brisk.observer import Observer, observe_all
from brisk.protocol.records import Span
from brisk.protocol.runtime_paths import Role, runtime_place
from brisk.telemetry.events import SPANS

if TYPE_CHECKING:
    from brisk_client.inference import InferenceClient

CLIENT = "client"

LABELLED_SHARE = 0.05
"""Spans as long as this share of the whole get their name written on them in the picture."""


@dataclass(frozen=True, slots=True)
class ProcessSpans:
    """The spans of one process; ``name`` as it is shown."""

    pid: int
    name: str
    spans: tuple[Span, ...]


def trace(
    model: Annotated[
        str,
        typer.Argument(
            help="A model's name on the server at --url, or the ONNX file or directory of a "
            "model, which is then loaded by a runtime of its own.",
            metavar="MODEL",
            show_default=False,
        ),
    ],
    url: Annotated[
        str, typer.Option(help="HTTP address of a running server.", metavar="HOST:PORT")
    ] = "",
    device: Annotated[str, typer.Option(help="cpu or cuda:<number>.")] = "cpu",
    job_class: Annotated[
        str,
        typer.Option(
            "--class",
            help="realtime, normal or besteffort; with --url up to the entry's brisk_max_class.",
        ),
    ] = "normal",
    output: Annotated[
        Path | None, typer.Option(help="The trace; the picture lies beside it, as .png.")
    ] = None,
) -> None:
    """Record when each lane, queue and layer did what, for one request.

    With `--url` the request goes through the running server, whose `$BRISK_RUNTIME_DIR` must be
    this one's; other requests that run meanwhile are in the trace, too. Without, a runtime of its
    own loads the model first: a cold start and its first request, then a warm one.

    The file is for https://ui.perfetto.dev. Recording slows a traced request by some microseconds
    a layer.
    """
    if url:
        processes = _through_server(model, url, device, job_class)
    else:
        processes = _cold_start(Path(model), device, job_class)
    stem = Path(model).resolve().name if not url else model
    file = output or Path(f"{stem}.trace.json")
    write_perfetto(processes, file)
    count = sum(len(process.spans) for process in processes)
    print(f"{count} spans in {file}, for https://ui.perfetto.dev")
    if find_spec("matplotlib") is None:
        print("no picture: pip install 'brisk-triton[bench]'")
        return
    picture = file.with_suffix(".png")
    write_picture(processes, picture)
    print(f"picture in {picture}")


@contextlib.contextmanager
def _span(name: str) -> Iterator[None]:
    begin_ns = time.monotonic_ns()
    yield
    SPANS.add(CLIENT, name, begin_ns, time.monotonic_ns())


def _through_server(model: str, url: str, device: str, job_class: str) -> list[ProcessSpans]:
    """The first request only starts what has not run yet; the second one is traced."""
    from brisk_client.inference import InferenceClient, Transport

    place = runtime_place(device)
    with InferenceClient(url, Transport.HTTP) as client, contextlib.ExitStack() as open_observers:
        _ask(client, model, job_class)
        observers = [open_observers.enter_context(each) for each in observe_all(place)]
        _begin(observers)
        _ask(client, model, job_class)
        return _collect(observers)


def _ask(client: InferenceClient, model: str, job_class: str) -> None:
    inputs = client.example_inputs(model)
    with _span(f"ask {model} over {client.transport.value}"):
        client.infer(model, inputs, parameters={"brisk_class": job_class})


def _cold_start(path: Path, device: str, job_class: str) -> list[ProcessSpans]:
    from brisk.cli.private_runtime import PrivateRuntime
    from brisk_client.benchmarks.engines.model_inputs import make_inputs

    if not path.exists():
        raise InvalidModelError(f"there is no model at '{path}'")
    file = model_file(path).resolve()
    inputs = make_inputs(file)
    if job_class == "besteffort":
        raise InvalidConfigurationError("a cold start is traced in the foreground only")
    with PrivateRuntime(device) as runtime, Observer(runtime.place, Role.FOREGROUND) as observer:
        _begin([observer])
        with _span(f"load {file.name}"):
            runtime.load(file, job_class)
        for name in ("first request", "warm request"):
            with _span(name):
                runtime.ask(inputs, job_class)
        return _collect([observer])


def _begin(observers: list[Observer]) -> None:
    SPANS.begin()
    for observer in observers:
        observer.begin_trace()


def _collect(observers: list[Observer]) -> list[ProcessSpans]:
    own, _ = SPANS.end()
    processes = [ProcessSpans(os.getpid(), CLIENT, tuple(own))]
    for observer in observers:
        role = observer.status().role
        spans = tuple(observer.end_trace())
        processes.append(ProcessSpans(observer.pid, f"{role} worker {observer.pid}", spans))
    return processes


# The timeline as a file for Perfetto (https://ui.perfetto.dev) and as a picture.


def write_perfetto(processes: Sequence[ProcessSpans], file: Path) -> None:
    """The Trace Event Format: one row for each lane; times in microseconds from the first span.

    Spans of a queue overlap, so they are asynchronous events, matched by an id.
    """
    origin_ns = _origin_ns(processes)
    events: list[dict[str, object]] = []
    identity = 0
    for process in processes:
        events.append(_named("process_name", process.pid, 0, process.name))
        lanes = list(dict.fromkeys(span.lane for span in process.spans))
        for number, lane in enumerate(lanes, start=1):
            events.append(_named("thread_name", process.pid, number, lane))
        for span in process.spans:
            identity += 1
            place = {
                "name": span.name,
                "cat": span.lane,
                "pid": process.pid,
                "tid": lanes.index(span.lane) + 1,
            }
            begin_us = (span.begin_ns - origin_ns) / 1e3
            end_us = (span.end_ns - origin_ns) / 1e3
            more = {"args": {"request": span.request, "details": span.details}}
            if _overlaps(span.lane, process.spans):
                events.append({**place, "ph": "b", "id": identity, "ts": begin_us, **more})
                events.append({**place, "ph": "e", "id": identity, "ts": end_us})
            else:
                length = {"ts": begin_us, "dur": end_us - begin_us}
                events.append({**place, "ph": "X", **length, **more})
    file.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


def write_picture(processes: Sequence[ProcessSpans], file: Path) -> None:
    """A bar for each span, a row for each lane."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    origin_ns = _origin_ns(processes)
    rows = [
        (process, lane)
        for process in processes
        for lane in dict.fromkeys(span.lane for span in process.spans)
    ]
    figure, axes = pyplot.subplots(figsize=(14, 1 + 0.6 * len(rows)), layout="constrained")
    last_ns = max((span.end_ns for each in processes for span in each.spans), default=0)
    labelled_ns = LABELLED_SHARE * (last_ns - origin_ns)
    for height, (process, lane) in enumerate(rows):
        for number, span in enumerate(each for each in process.spans if each.lane == lane):
            begin_ms = (span.begin_ns - origin_ns) / 1e6
            length_ms = (span.end_ns - span.begin_ns) / 1e6
            colour = f"C{number % 10}"
            axes.barh(height, length_ms, left=begin_ms, color=colour, height=0.8, alpha=0.8)
            if span.end_ns - span.begin_ns >= labelled_ns:
                middle = begin_ms + length_ms / 2
                axes.text(middle, height, span.name, ha="center", va="center", fontsize=7)
    axes.set_yticks(range(len(rows)), [f"{process.name}: {lane}" for process, lane in rows])
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def _origin_ns(processes: Sequence[ProcessSpans]) -> int:
    return min((span.begin_ns for process in processes for span in process.spans), default=0)


def _named(kind: str, pid: int, tid: int, name: str) -> dict[str, object]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _overlaps(lane: str, spans: Sequence[Span]) -> bool:
    """Whether two spans of the lane overlap without one lying in the other."""
    open_ends: list[int] = []
    own = (span for span in spans if span.lane == lane)
    for span in sorted(own, key=lambda each: (each.begin_ns, -each.end_ns)):
        while open_ends and open_ends[-1] <= span.begin_ns:
            open_ends.pop()
        if open_ends and span.end_ns > open_ends[-1]:
            return True
        open_ends.append(span.end_ns)
    return False
