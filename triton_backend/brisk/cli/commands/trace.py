"""``brisk trace``: the timeline of a cold start and of a request, as a file and a picture."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from brisk.cli.commands.models import model_file
from brisk.cli.views.trace import ProcessSpans, write_perfetto, write_picture
from brisk.errors import InvalidConfigurationError, InvalidModelError
from brisk.observer import Observer, observe_all
from brisk.protocol.runtime_paths import Role, runtime_place
from brisk.telemetry.events import SPANS

if TYPE_CHECKING:
    from brisk_client.inference import InferenceClient

CLIENT = "client"


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
    inputs = make_inputs(file, {})
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
