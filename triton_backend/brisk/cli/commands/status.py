"""``brisk status``: shows the current state of a device's runtime."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from brisk.cli.commands.models import DeviceOption
from brisk.cli.views.status import ProcessUse, StatusSnapshot, render
from brisk.errors import BriskError
from brisk.protocol.runtime_paths import RuntimePaths, runtime_place
from brisk.telemetry.observer import Observer, observe_all

PIPE_COLUMNS = 160
"""The width of an output that is no terminal: no name of a column or model is cut."""


def status(
    device: DeviceOption = "cpu",
    interval: Annotated[
        float, typer.Option(help="Seconds between two updates.", min=0.1, metavar="SECONDS")
    ] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print the status once and exit.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the status once, as JSON, and exit.")
    ] = False,
) -> None:
    """Show the runtime of a device as `top` does: its workers, a row a model, recent errors.

    Looks every second until Ctrl-C, once where the output is no terminal. Busy models come first;
    `memory` is what a model's weights are mapped from, `p50` and `p99` are of its runs since the
    worker began. `errors` counts requests that came to a worker and failed; what a stub refuses
    before, as an unknown parameter, only `brisk_errors_total` counts, too. `--json` has all
    counters. `$BRISK_RUNTIME_DIR` must be that of the server; nothing is started where no runtime
    is.
    """
    place = runtime_place(device)
    snapshots = look_at_all(place)
    if as_json:
        print(json.dumps([_plain(snapshot) for snapshot in snapshots], indent=1))
        return
    _show(place, snapshots, 0.0 if once else interval)


def look_at_all(place: RuntimePaths) -> list[StatusSnapshot]:
    """Return the states of all running workers. Raises UnavailableError if there are none."""
    with contextlib.ExitStack() as opened:
        return [look(opened.enter_context(observer)) for observer in observe_all(place)]


def look(observer: Observer) -> StatusSnapshot:
    """Return the current state of one worker."""
    at_s = time.monotonic()
    status = observer.status()
    use = _use_of(status.pid)
    return StatusSnapshot(status, tuple(observer.statistics()), at_s, use)


def _use_of(process: int) -> ProcessUse | None:
    """Return the processor time and memory of a process from ``/proc``; None if it is gone or
    hidden."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return None
    ticks = int(fields[11]) + int(fields[12])
    return ProcessUse(ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE"))


def _plain(value: Any) -> Any:
    """Convert records to JSON's types: named tuples to dictionaries, tuples to lists."""
    if hasattr(value, "_asdict"):
        return {name: _plain(field) for name, field in value._asdict().items()}
    return [_plain(element) for element in value] if isinstance(value, tuple) else value


def _show(place: RuntimePaths, snapshots: list[StatusSnapshot], interval_s: float) -> None:
    """Print the workers' states: once if ``interval_s`` is 0 or the output is no terminal, else
    again and again until Ctrl-C."""
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = PIPE_COLUMNS
    if not interval_s or not console.is_terminal:
        console.print(render(snapshots, {}, None, console.width))
        return
    shown = render(snapshots, {}, console.height, console.width)
    with contextlib.suppress(KeyboardInterrupt), Live(shown, console=console) as live:
        while True:
            before = {snapshot.worker: snapshot for snapshot in snapshots}
            time.sleep(interval_s)
            try:
                snapshots = look_at_all(place)
            except BriskError as error:
                live.update(f"{error}; looking again")
                continue
            live.update(render(snapshots, before, console.height, console.width))
