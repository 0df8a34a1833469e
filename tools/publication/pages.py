"""The pages of `docs/benchmarks`, an index and one for each published run; README's results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from brisk_client.report import REASON
from publication.checks import aim, mark, number, shown, worst_check
from publication.pictures import picture_of
from publication.runs import PublishedRun
from publication.subjects import Subject, subject_of

GENERATED = "<!-- Written by tools/make-results from data/*.json: change those, not this. -->"

_WIDEST = 60
"""Characters of a text that a table still shows; longer ones and lists are in the JSON only."""

_INDEX = """# Benchmarks

What was measured, on what, and whether it meets its aim. `tools/make-results` makes each page and
the table below from the JSON in [data](data), which `brisk bench NAME --json FILE` writes; a test
compares them. [How it is measured](method.md): sides, clocks, machine.

| benchmark | checks that hold | machine | date | commit | command |
| --- | --- | --- | --- | --- | --- |
"""


def all_pages(runs: Mapping[str, PublishedRun]) -> dict[str, str]:
    """Contents by the names of files in `docs/benchmarks`."""
    return {
        "README.md": f"{GENERATED}\n{_INDEX}{''.join(map(_index_line, runs.values()))}",
        **{f"{name}.md": page(run) for name, run in runs.items()},
    }


def page(run: PublishedRun) -> str:
    """One run: where it comes from, its checks, its rows, its notes."""
    subject = subject_of(run)
    origin = {
        "command": f"`{run.command}`" if run.command else "",
        "date": run.date,
        "commit": _commit(run),
        "machine": ", ".join(f"{_name(key)} {value}" for key, value in run.machine.items()),
        "versions": ", ".join(f"{name} {version}" for name, version in run.versions.items()),
    }
    checks = [
        _line(mark(check), check.name, shown(check), aim(check) or str(check.expected))
        for check in run.checks
    ]
    notes = [f"- {' '.join(note.split())}\n" for note in run.notes]
    picture = picture_of(run)
    parts = [
        f"{GENERATED}\n# {subject.title}\n\n{subject.about}\n",
        f"![{picture.about}](../pictures/{picture.file})\n" if picture is not None else "",
        _section("| | |\n| --- | --- |\n", [_line(*each) for each in origin.items() if each[1]]),
        _section("## Checks\n\n| | check | measured | aim |\n| --- | --- | --- | --- |\n", checks),
        *_rows(run, subject),
        _section("## Notes\n\n", notes),
        f"All of it: [data/{run.file}.json](data/{run.file}.json).\n",
    ]
    return "\n".join(part for part in parts if part)


def _section(head: str, lines: Sequence[str]) -> str:
    """Nothing where there are no lines."""
    return "".join([head, *lines]) if lines else ""


def _index_line(run: PublishedRun) -> str:
    held = sum(check.ok for check in run.checks)
    count = f"{'✓' if held == len(run.checks) else '✗'} {held} of {len(run.checks)}"
    return _line(
        f"[{subject_of(run).title}]({run.file}.md)",
        count if run.checks else "no aims",
        _machine(run),
        run.date[:10],
        _commit(run),
        f"`{run.command}`" if run.command else "reported, not measured by us",
    )


def _machine(run: PublishedRun) -> str:
    machine = run.machine
    if not machine:
        return "not told"
    cores = f", {machine['cores']} cores" if "cores" in machine else ""
    return f"{machine.get('processor', 'unknown')}{cores}"


def _commit(run: PublishedRun) -> str:
    if not run.commit:
        return ""
    return f"`{run.commit[:10]}`{' with uncommitted changes' if run.dirty else ''}"


def _rows(run: PublishedRun, subject: Subject) -> Iterable[str]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in run.rows:
        groups.setdefault(str(row.get(subject.split, "")), []).append(row)
    for value, rows in groups.items():
        title = f"{_name(subject.split)} {value}" if value else "rows"
        columns = list(dict.fromkeys(key for row in rows for key in row if key != subject.split))
        yield f"## {title[0].upper()}{title[1:]}\n\n{_table(rows, columns, subject.columns)}"


def _table(rows: Sequence[Mapping[str, Any]], there: Sequence[str], wanted: Sequence[str]) -> str:
    columns = [key for key in (*wanted, REASON) if key in there] if wanted else there
    columns = columns or there
    columns = [
        key for key in columns if key == REASON or all(_is_short(row.get(key)) for row in rows)
    ]
    lines = [_line(*(number(row.get(key)) for key in columns)) for row in rows]
    header = _line(*map(_name, columns))
    aligned = _line(*("---:" if _is_numeric(rows, key) else "---" for key in columns))
    return "".join([header, aligned, *lines])


def _line(*cells: str) -> str:
    texts = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(texts)} |\n"


def _name(key: str) -> str:
    return key.replace("_", " ")


def _is_short(value: Any) -> bool:
    return not isinstance(value, (list, dict)) and len(str(value)) <= _WIDEST


def _is_numeric(rows: Sequence[Mapping[str, Any]], key: str) -> bool:
    return all(isinstance(row.get(key), (int, float, type(None))) for row in rows)


# README's table of results: which figures of which runs, nothing of them written by hand.

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
            lines.append(_readme_line(row, run))
    return "\n".join([*lines, END])


def _readme_line(row: ReadmeRow, run: PublishedRun) -> str:
    found = worst_check(run, row.check)
    command = f"`brisk bench {run.name}`" if run.command else "reported"
    link = f"[{command}]({PAGES}/{row.file}.md)"
    return _line(row.label, shown(found), aim(found), mark(found), link).rstrip()


def with_table(text: str, table: str) -> str:
    """``text`` with what is between the markers exchanged. Precondition: it has both, once."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{table}{after}"
