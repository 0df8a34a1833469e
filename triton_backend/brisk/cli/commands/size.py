"""``brisk size``: the memory and time that a repository takes, measured with its own server."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from brisk.cli.commands.models import ShapesOption, read_shapes
from brisk.cli.views.model_files import is_model
from brisk.errors import InvalidConfigurationError, UnavailableError
from brisk.protocol.entry_files import CONFIG_FILE, MODEL_FILE, layout_problem
from brisk.telemetry.observer import observe_all

if TYPE_CHECKING:
    import numpy as np

    from brisk_bench.engines.model_inputs import GivenInputs
    from brisk_bench.harness.served_server import BenchmarkServer
    from brisk_client.inference import InferenceClient

FEWEST_REQUESTS = 20
_WARM_TIMEOUT_S = 120.0
_POLL_S = 0.2
_PIPE_COLUMNS = 120
_FIRST = "brisk_first_of_all"


class Size(NamedTuple):
    """The memory and time that one more entry takes. Times are None if no request was sent."""

    entry: str
    is_loaded: bool
    mib: float = 0.0
    """The additional memory of the server's processes with this entry."""
    p50_ms: float | None = None
    p99_ms: float | None = None
    processor_ms: float | None = None
    """The user and system time of all processes, per request."""
    problem: str = ""
    """Why the entry was not loaded or not measured; empty if it was measured."""


def size(
    repository: Annotated[
        Path,
        typer.Argument(help="A model repository.", metavar="REPOSITORY", show_default=False),
    ],
    seconds: Annotated[
        float, typer.Option(min=0.1, help="Seconds for which each warm model is measured.")
    ] = 2.0,
    shape: ShapesOption = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="Inputs of an entry's requests by name; else synthetic; may be given again.",
            metavar="ENTRY=FILE.npz",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Measure memory and processor time of each entry in a repository, and of all together.

    A server on free ports loads one entry after the other, beside those that are there, and asks
    each by one client until it is warm, and then for a while. `$BRISK_CACHE_DIR` and
    `$BRISK_THREADS` are those of the shell, and what is prepared stays. Exit status 1 where an
    entry could not be loaded.
    """
    from brisk_bench.engines.model_inputs import GivenInputs
    from brisk_bench.harness.served_server import benchmark_server
    from brisk_client.inference import InferenceClient, Transport

    shapes = read_shapes(shape or ())
    _check_repository(repository)
    entries = sorted(path.name for path in repository.iterdir() if path.is_dir())
    arrays = dict(_arrays(text, entries) for text in data or ())
    sizes, input_names = [], set[str]()
    with (
        tempfile.TemporaryDirectory(prefix="brisk-size-") as folder,
        _first_forgotten(Path(folder)),
        benchmark_server(Path(folder), {}, _first(Path(folder), repository)) as server,
        InferenceClient(server.grpc, Transport.GRPC) as client,
    ):
        alone_mib = held_mib = _settled_mib(server)
        for entry in entries:
            given = GivenInputs(arrays.get(entry, {}), shapes)
            measured = _measure(server, client, entry, seconds, given)
            before_mib, held_mib = held_mib, _settled_mib(server)
            sizes.append(measured._replace(mib=held_mib - before_mib))
            if measured.is_loaded:
                input_names.update(described["name"] for described in client.inputs(entry))
    if as_json:
        report = {"server_mib": alone_mib, "entries": [each._asdict() for each in sizes]}
        print(json.dumps(report, indent=1))
    else:
        _show(alone_mib, sizes)
    if unknown := sorted(shapes.keys() - input_names):
        raise InvalidConfigurationError(f"--shape: no loaded model has an input '{unknown[0]}'")
    if not all(each.is_loaded for each in sizes):
        raise typer.Exit(1)


def _check_repository(repository: Path) -> None:
    """Raise InvalidConfigurationError if the path is no usable model repository."""
    if not repository.is_dir():
        raise InvalidConfigurationError(
            f"'{repository}' is no directory; expected a model repository"
        )
    if is_model(repository):
        raise InvalidConfigurationError(
            f"'{repository}' is one model's directory; give the repository above it"
        )
    if (wrong := layout_problem(repository)) is not None:
        raise InvalidConfigurationError(f"'{repository}': {wrong}")


def _first(folder: Path, repository: Path) -> list[str]:
    """Return options for a server that first loads a model of one node in addition to the
    repository, so that what all entries share is there before they are measured."""
    from onnx import TensorProto, helper, save

    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y"))
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "first", [x], [y])
    file = folder / _FIRST / "1" / MODEL_FILE
    file.parent.mkdir(parents=True)
    opset = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, ir_version=8, opset_imports=opset), file)
    (folder / _FIRST / CONFIG_FILE).write_text(
        'backend: "brisk" instance_group [ { count: 1 kind: KIND_CPU } ]'
    )
    places = (folder, repository.resolve())
    return [
        *(f"--model-repository={place}" for place in places),
        "--model-control-mode=explicit",
        f"--load-model={_FIRST}",
    ]


@contextmanager
def _first_forgotten(folder: Path) -> Iterator[None]:
    """Remove the prepared form of the one-node model from the cache after the ``with`` block."""
    from brisk.artefacts import room
    from brisk.segments.prepared.form import find_prepared

    try:
        yield
    finally:
        if (prepared := find_prepared(folder / _FIRST / "1" / MODEL_FILE)) is not None:
            room.remove(prepared)


def _arrays(text: str, entries: Sequence[str]) -> tuple[str, Mapping[str, np.ndarray]]:
    """Return the entry and the arrays that a value of ``--data`` names. Raises
    InvalidConfigurationError."""
    from brisk_bench.engines.model_inputs import read_given
    from brisk_bench.harness.command_line import UnusableArgumentError

    entry, _, file = text.partition("=")
    if not file.endswith(".npz"):
        raise InvalidConfigurationError(f"--data {text}: expected ENTRY=FILE.npz")
    if entry not in entries:
        raise InvalidConfigurationError(
            f"--data {text}: the repository has no entry '{entry}'; it has: {', '.join(entries)}"
        )
    try:
        return entry, read_given([file]).arrays
    except UnusableArgumentError as error:
        raise InvalidConfigurationError(f"--data {text}: {error}") from None


def _settled_mib(server: BenchmarkServer) -> float:
    """Return the memory of all server processes in MiB; shared memory counts once (proportional
    set sizes)."""
    from brisk_bench.density.memory import settled_memory

    return sum(each.pss_bytes for each in settled_memory(server.place.base)) / 2**20


def _measure(
    server: BenchmarkServer,
    client: InferenceClient,
    entry: str,
    seconds: float,
    given: GivenInputs,
) -> Size:
    from tritonclient.utils import InferenceServerException

    try:
        client.load(entry)
    except InferenceServerException as error:
        problem, _, _ = error.message().partition("\n\nAt:")  # places in Triton's own Python
        return Size(entry, is_loaded=False, problem=problem)
    try:
        names = {described["name"] for described in client.inputs(entry)}
        own_shapes = {name: sizes for name, sizes in given.shapes.items() if name in names}
        inputs = client.example_inputs(entry, own_shapes, given.arrays)
        _warm(server, client, entry, inputs)
        times_s: list[float] = []
        before_s = server.processor_s()
        until_s = time.perf_counter() + seconds
        while len(times_s) < FEWEST_REQUESTS or time.perf_counter() < until_s:
            begin_s = time.perf_counter()
            client.infer(entry, inputs)
            times_s.append(time.perf_counter() - begin_s)
    except InferenceServerException as error:
        return Size(entry, is_loaded=True, problem=error.message())
    except ValueError as error:
        return Size(entry, is_loaded=True, problem=str(error))
    processor_s = (server.processor_s() - before_s) / len(times_s)
    p99_s = quantiles(times_s, n=100, method="inclusive")[98]
    return Size(entry, True, 0.0, median(times_s) * 1e3, p99_s * 1e3, processor_s * 1e3)


def _warm(
    server: BenchmarkServer,
    client: InferenceClient,
    entry: str,
    inputs: Mapping[str, np.ndarray],
) -> None:
    """Send requests, one each ``_POLL_S``, until no worker exchanges sessions any more, or for
    ``_WARM_TIMEOUT_S``."""
    until_s = time.monotonic() + _WARM_TIMEOUT_S
    while True:
        client.infer(entry, inputs)
        try:
            statuses = []
            for observer in observe_all(server.place):
                with observer:
                    statuses.append(observer.status())
        except UnavailableError:  # no entry of Brisk's is loaded yet
            return
        models = [model for status in statuses for model in status.models if model.layers]
        if all(model.is_settled for model in models) or time.monotonic() > until_s:
            return
        time.sleep(_POLL_S)


def _show(alone_mib: float, sizes: Sequence[Size]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("entry", overflow="fold")
    for header in ("MiB more", "p50 ms", "p99 ms", "processor ms", "a core's requests/s"):
        table.add_column(header, justify="right")
    for each in sizes:
        figures = ["", "", "", ""]
        if each.p50_ms is not None and each.p99_ms is not None and each.processor_ms:
            figures = [f"{each.p50_ms:.2f}", f"{each.p99_ms:.2f}", f"{each.processor_ms:.2f}"]
            figures.append(f"{1e3 / each.processor_ms:.0f}")
        table.add_row(each.entry, f"{each.mib:.1f}", *figures)
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _PIPE_COLUMNS
    console.print(table)
    total_mib = alone_mib + sum(each.mib for each in sizes)
    loaded = sum(each.is_loaded for each in sizes)
    console.print(
        f"{total_mib:.0f} MiB with {loaded} of {len(sizes)} entries, {alone_mib:.0f} MiB without"
    )
    for each in sizes:
        if each.problem:
            what = "was not asked" if each.is_loaded else "was not loaded"
            console.print(f"'{each.entry}' {what}: {each.problem}", soft_wrap=True)
