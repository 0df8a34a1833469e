"""``brisk bench``, which runs a command of ``brisk_bench``, and ``brisk workload``, whose requests
``brisk_client`` sends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from brisk.errors import InvalidConfigurationError, UnavailableError

if TYPE_CHECKING:
    from brisk_client.workload.description import Workload

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""The settings of a command that leaves all its arguments, ``--help`` too, to another parser."""


def bench(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(help="The benchmark; without it they are listed.", show_default=False),
    ] = "",
) -> None:
    """Run a benchmark: `brisk bench NAME [--quick] [--json FILE] [its options]`.

    `brisk bench` lists the names, `brisk bench NAME --help` a benchmark's own options. The exit
    status is 0 where everything that the benchmark expects holds.
    """
    from brisk_bench import COMMANDS, main_of

    names = sorted(COMMANDS)
    if name in ("", "--help"):
        print("\n".join(names) if not name else context.get_help())
        return
    if name not in names:
        raise InvalidConfigurationError(
            f"there is no benchmark '{name}'; there are: {', '.join(names)}"
        )
    raise typer.Exit(main_of(name)(context.args))


def workload(
    file: Annotated[
        Path,
        typer.Argument(help="A workload in DISB's JSON.", metavar="FILE", show_default=False),
    ],
    url: Annotated[
        str, typer.Option(help="gRPC endpoint of the server.", metavar="HOST:PORT")
    ] = "127.0.0.1:8001",
    seconds: Annotated[
        float | None, typer.Option(help="Duration, instead of the file's.", min=0.1)
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="Send requests to model B where the file names A; may be given again.",
            metavar="A=B",
        ),
    ] = None,
    rows: Annotated[
        Path | None,
        typer.Option(help="Write a row per request: .csv or .jsonl.", metavar="FILE"),
    ] = None,
    json: Annotated[Path | None, typer.Option(help="File for the report.", metavar="FILE")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Folder for plots of the latencies.", metavar="FOLDER")
    ] = None,
) -> None:
    """Run a workload against any Triton server, over gRPC.

    Latency counts from when a request was due. The exit status is 0 where every request was
    answered and the generator sent on time.
    """
    from rich.console import Console

    from brisk_bench.harness.report import show, write_json
    from brisk_bench.workload_report import plot_run, run_progress, summarise_run
    from brisk_client.workload.description import WorkloadFailedError
    from brisk_client.workload.runner import run_workload

    described = _read(file, seconds, model or [])
    try:
        with run_progress(described, Console()) as watch:
            outcome = run_workload(described, url, rows=rows, watch=watch)
    except WorkloadFailedError as error:
        raise UnavailableError(str(error)) from None
    report = summarise_run(f"workload {file.stem}", outcome)
    show(report)
    if json is not None:
        write_json(report, json)
    if plot is not None:
        plot_run(file.stem, outcome, plot)
    raise typer.Exit(0 if report.ok else 1)


def _read(file: Path, seconds: float | None, models: list[str]) -> Workload:
    from brisk_client.workload.parsing import read_workload

    try:
        described = read_workload(file)
    except OSError as error:
        raise InvalidConfigurationError(
            f"workload '{file}' cannot be read: {error.strerror}; expected a JSON file"
        ) from None
    except ValueError as error:
        raise InvalidConfigurationError(f"{error}; expected a workload in DISB's JSON") from None
    models_asked = {task.model for task in described.tasks}
    renamed = {}
    for text in models:
        old, _, new = text.partition("=")
        if not old or not new:
            raise InvalidConfigurationError(f"--model wants A=B, not '{text}'")
        if old not in models_asked:
            raise InvalidConfigurationError(
                f"--model: no task asks '{old}', only {', '.join(sorted(models_asked))}"
            )
        renamed[old] = new
    tasks = tuple(
        replace(task, model=renamed.get(task.model, task.model)) for task in described.tasks
    )
    return replace(described, tasks=tasks, duration_s=seconds or described.duration_s)
