"""A run on the terminal while it goes on, and as pictures when it is over."""

from __future__ import annotations

import math
import time
from pathlib import Path
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table

from brisk_client.workload.results.histogram import RELATIVE_WIDTH
from brisk_client.workload.results.outcome import RunOutcome
from brisk_client.workload.sending.runner import Counts
from brisk_client.workload.spec.description import Workload


def plot_run(name: str, outcome: RunOutcome, folder: Path) -> list[Path]:
    """One file: for each task, the share of requests that took longer than so much."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for task in outcome.tasks:
        if not task.latency.count:
            continue
        times_ms, longer = [], []
        seen = 0
        for bucket in sorted(task.latency.counts):
            seen += task.latency.counts[bucket]
            times_ms.append(math.exp((bucket + 0.5) * math.log1p(RELATIVE_WIDTH)) / 1e6)
            longer.append(1 - seen / task.latency.count)
        axes.step(times_ms, longer, where="post", label=task.task)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("latency, ms")
    axes.set_ylabel("share of requests that took longer")
    axes.set_title(name)
    axes.legend(fontsize="small")
    file = folder / f"{name}-latency.png"
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
    return [file]


# Counts on the terminal while a workload runs.


class RunProgress:
    """A table that is drawn anew with each ``update``; a context manager.

    Draws nothing where the output is no terminal.
    """

    def __init__(self, workload: Workload, console: Console) -> None:
        self._workload = workload
        self._begun_s: float | None = None
        self._live = Live(self._table({}), console=console, auto_refresh=False, transient=True)
        self._is_shown = console.is_terminal

    def update(self, counts: Counts) -> None:
        if self._begun_s is None:
            self._begun_s = time.monotonic()
        if self._is_shown:
            self._live.update(self._table(counts), refresh=True)

    def _table(self, counts: Counts) -> Table:
        past_s = 0.0 if self._begun_s is None else time.monotonic() - self._begun_s
        duration_s = self._workload.duration_s
        table = Table(title=f"{min(past_s, duration_s):.0f} of {duration_s:g} s")
        for column in ("task", "class", "model", "answered", "failed", "dropped"):
            table.add_column(column, justify="right" if column.endswith("ed") else "left")
        for task in self._workload.tasks:
            numbers = (str(number) for number in counts.get(task.name, (0, 0, 0)))
            table.add_row(task.name, task.job_class or "", task.model, *numbers)
        return table

    def __enter__(self) -> RunProgress:
        if self._is_shown:
            self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_shown:
            self._live.__exit__(kind, error, traceback)
