"""The README's table of results: which figures of which runs, nothing of them written by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from brisk_client.publication.figures import aim, mark, shown, worst_check
from brisk_client.publication.runs import PublishedRun

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"

PAGES = "docs/benchmarks"


@dataclass(frozen=True, slots=True)
class ReadmeRow:
    """A row of the README's table; left out as long as the file is not there.

    ``check``: the pattern of the names of the checks, of which the worst is shown.
    """

    label: str
    file: str
    check: str


README_ROWS = (
    ReadmeRow(
        "**Warm** inference of real models that nobody tuned for, over ONNX Runtime's time, one "
        "thread, geometric mean",
        "warm-real",
        r"geometric mean of \d+ models: brisk / onnxruntime",
    ),
    ReadmeRow(
        "**Cold start** in process, prepared: ONNX Runtime's time over ours, mean of the models",
        "cold-process",
        r"\d+ models: brisk, geometric mean of speed-ups over onnxruntime",
    ),
    ReadmeRow(
        "**Server start**: from `exec` to the first answer, ResNet-50, prepared, over the Python "
        "backend with ONNX Runtime",
        "start",
        r"resnet50.*: brisk prepared over python backend, onnxruntime, exec to first answer",
    ),
    ReadmeRow(
        "**Priorities**: DISB's workload C, real-time p99 over that alone",
        "preempt-workloads",
        r"C: real-time p99 / RT-only",
    ),
    ReadmeRow(
        "**Early exits**: mean speed-up on Fashion-MNIST at the lowest promise",
        "exits-fashion",
        r".*[Ff]ashion.*, 97%: mean speed-up",
    ),
    ReadmeRow(
        "**Promise**: splits of a pool after which more early answers disagree than promised",
        "exits-promise",
        r".*97\.0%: splits after which more than 3\.0% of the rest disagree",
    ),
    ReadmeRow(
        "**Soak**: requests lost or answered with an error beside kills, damage and full disks",
        "soak",
        r"errors, lost requests among them",
    ),
)


def readme_table(runs: Mapping[str, PublishedRun]) -> str:
    """The table's lines with its markers. Raises UnusableRunError where a figure is missing."""
    lines = [BEGIN, "| | measured | aim | | command |", "| --- | --- | --- | --- | --- |"]
    for row in README_ROWS:
        if (run := runs.get(row.file)) is not None:
            lines.append(_line(row, run))
    return "\n".join([*lines, END])


def _line(row: ReadmeRow, run: PublishedRun) -> str:
    found = worst_check(run, row.check)
    command = f"`brisk bench {run.name}`" if run.command else "reported"
    return (
        f"| {row.label} | {shown(found)} | {aim(found)} | {mark(found)} | "
        f"[{command}]({PAGES}/{row.file}.md) |"
    )


def with_table(text: str, table: str) -> str:
    """``text`` with what is between the markers exchanged. Precondition: it has both, once."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{table}{after}"
