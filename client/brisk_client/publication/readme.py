"""The README's table of results: which figures of which runs, nothing of them written by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from brisk_client.publication.figures import CheckFigure, Figure, aim, mark, shown
from brisk_client.publication.runs import PublishedRun

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"

PAGES = "docs/benchmarks"


@dataclass(frozen=True, slots=True)
class ReadmeRow:
    """A row of the README's table; left out as long as the file is not there.

    ``instead``: a file that makes this row superfluous once it is there. ``text`` names the
    figures in braces; ``aim`` and mark are those of the first figure.
    """

    label: str
    file: str
    figures: Mapping[str, Figure]
    text: str = "{value}"
    instead: str = ""


def _check_row(label: str, file: str, pattern: str, text: str = "{value}") -> ReadmeRow:
    return ReadmeRow(label, file, {"value": CheckFigure(pattern)}, text)


README_ROWS = (
    _check_row(
        "**Warm** inference of real models that nobody tuned for, over ONNX Runtime's time, one "
        "thread, geometric mean",
        "warm-real",
        r"geometric mean of \d+ models: brisk / onnxruntime",
    ),
    _check_row(
        "**Cold start** in process, prepared: ONNX Runtime's time over ours, mean of the models",
        "cold-process",
        r"\d+ models: brisk, geometric mean of speed-ups over onnxruntime",
    ),
    _check_row(
        "**Server start**: from `exec` to the first answer, ResNet-50, over that of the soonest "
        "peer",
        "start",
        r"resnet50.*: brisk first over .*, exec to first answer",
    ),
    _check_row(
        "**Priorities**: DISB's workload C, real-time p99 over that alone",
        "preempt-workloads",
        r"C: real-time p99 / RT-only",
    ),
    _check_row(
        "**Early exits**: mean speed-up on Fashion-MNIST at the lowest promise",
        "exits-fashion",
        r".*[Ff]ashion.*, 97%: mean speed-up",
    ),
    _check_row(
        "**Promise**: splits of a pool after which more early answers disagree than promised",
        "exits-promise",
        r".*97\.0%: splits after which more than 3\.0% of the rest disagree",
    ),
    _check_row(
        "**Soak**: requests lost or answered with an error beside kills, damage and full disks",
        "soak",
        r"errors, lost requests among them",
    ),
)


def readme_table(runs: Mapping[str, PublishedRun]) -> str:
    """The table's lines with its markers. Raises UnusableRunError where a figure is missing."""
    lines = [BEGIN, "| | measured | aim | | command |", "| --- | --- | --- | --- | --- |"]
    for row in README_ROWS:
        if (run := runs.get(row.file)) is not None and row.instead not in runs:
            lines.append(_line(row, run))
    return "\n".join([*lines, END])


def _line(row: ReadmeRow, run: PublishedRun) -> str:
    found = {name: figure.find(run) for name, figure in row.figures.items()}
    first = next(iter(found.values()))
    measured = row.text.format(**{name: shown(check) for name, check in found.items()})
    command = f"`brisk bench {run.name}`" if run.command else "reported"
    return (
        f"| {row.label} | {measured} | {aim(first)} | {mark(first)} | "
        f"[{command}]({PAGES}/{row.file}.md) |"
    )


def with_table(text: str, table: str) -> str:
    """``text`` with what is between the markers exchanged. Precondition: it has both, once."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{table}{after}"
