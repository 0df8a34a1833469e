"""README's table of results, by runs and checks; nothing of it is written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from publication.checks import aim, mark, worst_check, worst_shown
from publication.runs import PublishedRun
from publication.standing import all_flaws, options_of
from publication.subjects import page_of

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"

FOLDER = "docs/benchmarks"

THREADS = "--threads"
"""The option of runs that are not what a user gets by default."""


@dataclass(frozen=True, slots=True)
class ReadmeRow:
    """A row of the README's table; left out unless all of its runs are full and of one commit.

    ``file``: the pattern of their files' names.
    ``check``: the pattern of the names of their checks, of which the worst is shown.
    """

    label: str
    file: str
    check: str


README_ROWS = (
    ReadmeRow(
        "**Warm**, in process: time of an inference of real models over ONNX Runtime's, whose "
        "idle threads spin or sleep, whichever is faster; geometric mean",
        "warm-real",
        r"geometric mean of \d+ models: brisk / onnxruntime",
    ),
    ReadmeRow(
        "**Warm**, through Triton: latency of real models over that of the Python backend with "
        "ONNX Runtime; geometric mean",
        "warm-real",
        r"geometric mean of \d+ models through Triton: brisk / .*",
    ),
    ReadmeRow(
        "**Cold start** in process of prepared models: time to the first answer of ONNX Runtime, "
        "prepared by its own means, over Brisk's; geometric mean",
        "cold-process",
        r"\d+ models: brisk over onnxruntime prepared, geometric mean",
    ),
    ReadmeRow(
        "**Server start**, from `exec` to the first answer of a prepared ResNet-50: time of Brisk "
        "over that of the soonest other backend with a model that ONNX Runtime prepared",
        "start",
        r"resnet50: brisk prepared over .*prepared.*, exec to first answer",
    ),
    ReadmeRow(
        "**Density**, many different small networks on one server: memory over that of the Python "
        "backend with ONNX Runtime",
        "density",
        r"\d+ different networks: memory over python backend, onnxruntime",
    ),
    ReadmeRow(
        "**Density**, the same server: latency of a second request to each network over that of "
        "the Python backend",
        "density",
        r"\d+ different networks: second round's latency over python backend, onnxruntime",
    ),
    ReadmeRow(
        "**Priorities**: real-time p99 with concurrent best-effort clients over that of the "
        "real-time client alone; the worst of DISB's workloads and a trace",
        "preempt-workloads-*",
        r".*real-time p99 / RT-only.*",
    ),
    ReadmeRow(
        "**Priorities**, the same runs: all answers a second over those of Triton's Python "
        "backend with best-effort work confined to one thread",
        "preempt-workloads-*",
        r".*throughput / that of triton besteffort confined",
    ),
    ReadmeRow(
        "**Early exits**: mean latency of a ResNet on Fashion-MNIST over that with learned "
        "caches, at the lowest promise",
        "exits-fashion",
        r".*[Ff]ashion.*, 97%: mean speed-up",
    ),
    ReadmeRow(
        "**Promise**: of random splits of the data, the percentage after which early answers "
        "equal the model's less often than was proved; the worst promise or exit, upper end of "
        "the confidence interval",
        "exits-promise",
        r".*: share of splits after which .*",
    ),
    ReadmeRow(
        "**Soak**: requests lost or answered with an error under killed workers, damaged files "
        "and full disks",
        "soak",
        r"errors, lost requests among them",
    ),
)


def readme_table(runs: Mapping[str, PublishedRun]) -> str:
    """Return the table's lines with its markers. Raises UnusableRunError for a missing figure."""
    lines = [BEGIN, "| | measured | aim | | command |", "| --- | --- | --- | --- | --- |"]
    for row in README_ROWS:
        if found := runs_of(row, runs):
            lines.append(_readme_line(row, found))
    return "\n".join([*lines, END])


def runs_of(row: ReadmeRow, runs: Mapping[str, PublishedRun]) -> list[PublishedRun]:
    """Return the runs of a row; none if one of them does not stand for the product."""
    flaws = all_flaws(runs)
    found = [run for file, run in runs.items() if fnmatchcase(file, row.file)]
    is_standing = not any(flaws[run.file] or THREADS in options_of(run) for run in found)
    return found if is_standing else []


def _readme_line(row: ReadmeRow, runs: Sequence[PublishedRun]) -> str:
    worst = worst_check(runs, row.check)
    page = page_of(runs[0].file)
    assert page is not None, "the README shows runs that have pages"
    wanted = aim(worst)
    link = f"[`brisk bench {runs[0].name}`]({FOLDER}/{page.name}.md)"
    found = worst_shown(runs, row.check)
    cells = (row.label, found, f"≤ {wanted}" if wanted.isdigit() else wanted, mark(worst))
    return f"| {' | '.join([*cells, link])} |"


def with_table(text: str, table: str) -> str:
    """Return ``text`` with ``table`` between the markers. Precondition: it has both, once."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{table}{after}"
