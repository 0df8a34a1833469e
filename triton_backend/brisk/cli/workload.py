"""``brisk workload``: sends a workload file's requests to a server and tells how it did."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from brisk.errors import InvalidConfigurationError, UnavailableError

if TYPE_CHECKING:
    from brisk_client.workload.description import Workload


def workload(
    file: Annotated[
        Path,
        typer.Argument(help="A workload in DISB's JSON.", metavar="FILE", show_default=False),
    ],
    url: Annotated[
        str, typer.Option(help="gRPC endpoint of the server.", metavar="HOST:PORT")
    ] = "127.0.0.1:8001",
    seconds: Annotated[
        float | None, typer.Option(help="How long, in place of the file's time.", min=0.1)
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="Ask model B where the file says A; any number.", metavar="A=B"),
    ] = None,
    rows: Annotated[
        Path | None,
        typer.Option(help="Write a row per request: .csv or .jsonl.", metavar="FILE"),
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="Write the report there.", metavar="FILE")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the latencies there.", metavar="FOLDER")
    ] = None,
) -> None:
    """Run a workload against any Triton server, over gRPC.

    Latency counts from when a request was due. The exit status is 0 where every request was
    answered and the generator sent on time.
    """
    from rich.console import Console

    from brisk_client.report import show, write_json
    from brisk_client.workload.description import WorkloadFailedError
    from brisk_client.workload.runner import run_workload
    from brisk_client.workload.summary import plot_run, run_progress, summarise_run

    wanted = _read(file, seconds, model or [])
    try:
        with run_progress(wanted, Console()) as watch:
            outcome = run_workload(wanted, url, rows=rows, watch=watch)
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
    from dataclasses import replace

    from brisk_client.workload.parsing import read_workload

    try:
        found = read_workload(file)
    except (ValueError, OSError) as error:
        raise InvalidConfigurationError(str(error)) from None
    renamed = {}
    for text in models:
        old, separator, new = text.partition("=")
        if not separator or not old or not new:
            raise InvalidConfigurationError(f"--model wants A=B, not '{text}'")
        if old not in {task.model for task in found.tasks}:
            known = ", ".join(sorted({task.model for task in found.tasks}))
            raise InvalidConfigurationError(f"--model: no task asks '{old}', only {known}")
        renamed[old] = new
    tasks = tuple(replace(task, model=renamed.get(task.model, task.model)) for task in found.tasks)
    return replace(found, tasks=tasks, duration_s=seconds or found.duration_s)
