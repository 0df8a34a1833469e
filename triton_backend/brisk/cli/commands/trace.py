"""``brisk trace``: records the timeline of a cold start or a request, as a file and a picture."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from brisk.cli.commands.models import DeviceOption, ShapesOption, read_shapes
from brisk.cli.views.model_files import model_file
from brisk.errors import BriskError, InvalidConfigurationError, InvalidModelError, UnavailableError
from brisk.paths import version_folder
from brisk.protocol.channel import check_peer
from brisk.protocol.records import LoadModel, Span, TensorForm
from brisk.protocol.runtime_paths import Role, RuntimePaths, runtime_place
from brisk.telemetry.events import SPANS
from brisk.telemetry.observer import Observer, observe_all

if TYPE_CHECKING:
    import numpy as np

    from brisk.stub.runtime_client.client import RuntimeClient
    from brisk_bench.engines.model_inputs import GivenInputs
    from brisk_client.inference import InferenceClient

CLIENT = "client"

LABELLED_SHARE = 0.05
"""The share of the whole time from which on a span has its name written on it in the picture."""


class ProcessSpans(NamedTuple):
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
        str,
        typer.Option(help="HTTP or gRPC address of a running server.", metavar="HOST:PORT"),
    ] = "",
    device: DeviceOption = "cpu",
    job_class: Annotated[
        str,
        typer.Option(
            "--class",
            help="realtime, normal or besteffort; with --url up to the entry's brisk_max_class.",
        ),
    ] = "normal",
    data: Annotated[
        Path | None, typer.Option(help="The request's inputs by name, .npz; else synthetic.")
    ] = None,
    shape: ShapesOption = None,
    output: Annotated[
        Path | None,
        typer.Option(help="File for the trace; its picture is written beside it, as .png."),
    ] = None,
) -> None:
    """Record when each lane, queue and segment did what, for one request.

    With `--url` the request goes through the running server, whose `$BRISK_RUNTIME_DIR` must be
    this one's; other requests that run meanwhile are in the trace, too. Without, a runtime of its
    own loads the model first: a cold start and its first request, then a warm one.

    The file is for https://ui.perfetto.dev. Recording slows a traced request by some microseconds
    a segment.
    """
    from brisk_client.urgency import check_class

    given_inputs = _given_inputs(data, shape or ())
    try:
        check_class(job_class)
    except ValueError as error:
        raise InvalidConfigurationError(f"--class: {error}") from None
    if url:
        processes = _through_server(model, url, device, job_class, given_inputs)
    else:
        processes = _cold_start(Path(model), device, job_class, given_inputs)
    stem = Path(model).resolve().name if not url else model
    _write(processes, output or Path(f"{stem}.trace.json"))


def _write(processes: Sequence[ProcessSpans], file: Path) -> None:
    """Write the trace, and its picture if matplotlib is installed; print where they are."""
    write_perfetto(processes, file)
    count = sum(len(process.spans) for process in processes)
    print(f"{count} spans in {file}, for https://ui.perfetto.dev")
    if find_spec("matplotlib") is None:
        print("no picture: pip install 'brisk-triton[bench]'")
        return
    picture = file.with_suffix(".png")
    write_picture(processes, picture)
    print(f"picture in {picture}")


def _given_inputs(data: Path | None, shapes: Sequence[str]) -> GivenInputs:
    """Return the inputs that ``--data`` and ``--shape`` give. Raises InvalidConfigurationError."""
    given = read_shapes(shapes)
    if data is not None and data.suffix != ".npz":
        raise InvalidConfigurationError(
            f"--data must be a .npz with an array for each input, not '{data}'"
        )
    from brisk_bench.engines.model_inputs import GivenInputs, read_given
    from brisk_bench.harness.command_line import UnusableArgumentError

    try:
        return GivenInputs(read_given([] if data is None else [str(data)]).arrays, given)
    except UnusableArgumentError as error:
        raise InvalidConfigurationError(f"--data: {error}") from None


@contextlib.contextmanager
def _span(name: str) -> Iterator[None]:
    begin_ns = time.monotonic_ns()
    yield
    SPANS.add(CLIENT, name, begin_ns, time.monotonic_ns())


def _through_server(
    model: str, url: str, device: str, job_class: str, given: GivenInputs
) -> list[ProcessSpans]:
    """Record a request through a running server: the second of two, since the first starts what
    has not run yet."""
    from brisk_client.inference import InferenceClient, transport_of

    place = runtime_place(device)
    try:
        transport = transport_of(url)
    except (OSError, ValueError) as error:
        raise UnavailableError(f"no server answers at '{url}': {error}") from error
    with InferenceClient(url, transport) as client, contextlib.ExitStack() as open_observers:
        try:
            inputs = client.example_inputs(model, given.shapes, given.arrays)
        except ValueError as error:
            if type(error).__name__ == "JSONDecodeError":  # of whatever library tritonclient has
                raise UnavailableError(
                    f"'{url}' answers, but not as Triton's HTTP or gRPC port does"
                ) from None
            raise InvalidConfigurationError(str(error)) from error
        with _naming_made_up(inputs, given):
            _ask(client, model, job_class, inputs)
        observers = [open_observers.enter_context(each) for each in observe_all(place)]
        _begin(observers)
        _ask(client, model, job_class, inputs)
        return _collect(observers)


@contextlib.contextmanager
def _naming_made_up(inputs: Mapping[str, np.ndarray], given: GivenInputs) -> Iterator[None]:
    """Add to the error of a refused request which inputs were made up, not given by the user: they
    may not fit.

    Raises InvalidConfigurationError in its place.
    """
    made_up = {name: array for name, array in inputs.items() if name not in given.arrays}
    try:
        yield
    except Exception as error:
        is_answer = type(error).__name__ == "InferenceServerException"  # tritonclient's
        if not made_up or not (is_answer or isinstance(error, BriskError)):
            raise
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in made_up.items())
        raise InvalidConfigurationError(
            f"{error}; inputs that nobody has given were made up, {shapes}: --shape and --data "
            "give others"
        ) from error


def _ask(
    client: InferenceClient, model: str, job_class: str, inputs: Mapping[str, np.ndarray]
) -> None:
    with _span(f"ask {model} over {client.transport.value}"):
        client.infer(model, inputs, parameters={"brisk_class": job_class})


def _cold_start(path: Path, device: str, job_class: str, given: GivenInputs) -> list[ProcessSpans]:
    """Record a cold start in this command's own runtime, through the same client code as in
    Triton's stub."""
    from brisk.stub.runtime_client.client import RuntimeClient
    from brisk_bench.engines.model_inputs import make_inputs
    from brisk_bench.harness.command_line import UnusableArgumentError

    if not path.exists():  # a model's name, more likely than a wrong path
        raise InvalidModelError(
            f"there is no model at '{path}'; for a model of a running server give --url HOST:PORT"
        )
    file = model_file(path).resolve()
    try:
        inputs = make_inputs(file, given)
    except UnusableArgumentError as error:
        text = re.sub("--input ([^ ]+):shape=", r"--shape \1=", str(error))
        raise InvalidConfigurationError(text) from error
    if job_class == "besteffort":
        raise InvalidConfigurationError("a cold start is traced in the foreground only")
    name = version_folder(file).parent.name or file.stem
    description = LoadModel(name, 1, str(file), 0, False, 16, job_class)
    with _own_runtime(device) as place, Observer(place, Role.FOREGROUND) as observer:
        _begin([observer])
        runtime = RuntimeClient(place, description, lambda level, text: None)
        with _span(f"load {file.name}"):
            runtime.open()
        with contextlib.closing(runtime):
            for title in ("first request", "warm request"):
                with _span(title), _naming_made_up(inputs, given):
                    _ask_runtime(runtime, inputs, job_class)
            return _collect([observer])


@contextlib.contextmanager
def _own_runtime(device: str) -> Iterator[RuntimePaths]:
    import tempfile

    from brisk.stub.runtime_client.runtime_process import open_connection

    with tempfile.TemporaryDirectory(prefix="brisk-own-", ignore_cleanup_errors=True) as folder:
        place = RuntimePaths(Path(folder) / "runtime", device)
        with open_connection(place, Role.FOREGROUND) as connection:
            supervisor = check_peer(connection)  # whose socket it is
        try:
            yield place
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(supervisor, signal.SIGTERM)


def _ask_runtime(runtime: RuntimeClient, inputs: Mapping[str, np.ndarray], job_class: str) -> None:
    from brisk.protocol.datatypes import BY_ELEMENT_NAME, serialize_strings
    from brisk_bench.harness.timed_reply import TimedReply

    forms, contents = [], []
    for name, array in inputs.items():
        is_text = array.dtype.kind in "OSU"
        datatype = BY_ELEMENT_NAME["string" if is_text else array.dtype.name].name
        forms.append(TensorForm(name, datatype, array.shape))
        contents.append(serialize_strings(array.reshape(-1)) if is_text else array.tobytes())
    staged = runtime.stage(tuple(forms), list(map(len, contents)))
    for content, region in zip(contents, staged.regions, strict=True):
        runtime.memory(region)[:] = content
    reply = TimedReply()
    runtime.submit(staged, (), job_class, None, reply)
    reply.wait()


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
    """Write the spans in the Trace Event Format: one row for each ``lane``, times in microseconds
    from the first span.

    Spans of a queue overlap, so they are asynchronous events, matched by an id.
    """
    origin_ns = _origin_ns(processes)
    events: list[dict[str, object]] = []
    for process in processes:
        events.append(_named("process_name", process.pid, 0, process.name))
        for lane_id, (lane, spans) in enumerate(_lanes(process).items(), start=1):
            events.append(_named("thread_name", process.pid, lane_id, lane))
            are_apart = not _overlap(spans)
            for span in spans:
                event = {
                    "name": span.name,
                    "cat": lane,
                    "pid": process.pid,
                    "tid": lane_id,
                    "ts": (span.begin_ns - origin_ns) / 1e3,
                    "args": {"request": span.request, "details": span.details},
                }
                if are_apart:
                    events.append({**event, "ph": "X", "dur": (span.end_ns - span.begin_ns) / 1e3})
                else:
                    event["id"] = len(events)
                    events.append({**event, "ph": "b"})
                    events.append({**event, "ph": "e", "ts": (span.end_ns - origin_ns) / 1e3})
    file.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


def write_picture(processes: Sequence[ProcessSpans], file: Path) -> None:
    """Draw a bar for each span, in a row for each ``lane``."""
    import matplotlib

    from brisk.runtime.requests.tracing import SEGMENTS

    matplotlib.use("Agg")
    from matplotlib import pyplot

    origin_ns = _origin_ns(processes)
    rows = {
        f"{process.name}: {'segments' if lane == SEGMENTS else lane}": spans
        for process in processes
        for lane, spans in _lanes(process).items()
    }
    figure, axes = pyplot.subplots(figsize=(14, 1 + 0.6 * len(rows)), layout="constrained")
    last_ns = max((span.end_ns for spans in rows.values() for span in spans), default=0)
    labelled_ns = LABELLED_SHARE * (last_ns - origin_ns)
    for height, spans in enumerate(rows.values()):
        for number, span in enumerate(spans):
            begin_ms = (span.begin_ns - origin_ns) / 1e6
            length_ms = (span.end_ns - span.begin_ns) / 1e6
            colour = f"C{number % 10}"
            axes.barh(height, length_ms, left=begin_ms, color=colour, height=0.8, alpha=0.8)
            if span.end_ns - span.begin_ns >= labelled_ns:
                middle = begin_ms + length_ms / 2
                axes.text(middle, height, span.name, ha="center", va="center", fontsize=7)
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def _origin_ns(processes: Sequence[ProcessSpans]) -> int:
    return min((span.begin_ns for process in processes for span in process.spans), default=0)


def _lanes(process: ProcessSpans) -> dict[str, list[Span]]:
    lanes: dict[str, list[Span]] = {}
    for span in process.spans:
        lanes.setdefault(span.lane, []).append(span)
    return lanes


def _named(kind: str, pid: int, tid: int, name: str) -> dict[str, object]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _overlap(spans: Sequence[Span]) -> bool:
    """Whether two spans overlap without one lying inside the other."""
    open_ends: list[int] = []
    for span in sorted(spans, key=lambda each: (each.begin_ns, -each.end_ns)):
        while open_ends and open_ends[-1] <= span.begin_ns:
            open_ends.pop()
        if open_ends and span.end_ns > open_ends[-1]:
            return True
        open_ends.append(span.end_ns)
    return False
