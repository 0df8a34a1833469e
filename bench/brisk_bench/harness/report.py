"""The results of a benchmark: rows to show, checks to pass; on the screen, as JSON, as a plot."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from brisk_bench.harness.tails import tail_ratio

_PIPE_COLUMNS = 180
_LONGEST_LIST = 20

REASON = "reason"
"""The key of a row without a measurement: the reason why there is none."""


@dataclass
class Check:
    """One expectation: the value found, what was expected, and whether it holds."""

    name: str
    value: Any
    expected: Any
    ok: bool


COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
}


def check_limit(
    name: str, value: float | str, comparison: str, limit: float, digits: int | None = None
) -> Check:
    """Check that ``value`` is to ``limit`` as ``comparison`` (of COMPARISONS) says.

    Fails if ``value`` is a text on why there is none. It is judged before it is rounded to
    ``digits``, or to as many more as it takes to be seen on its side of the limit.
    """
    expected = f"{comparison} {limit:g}"
    if isinstance(value, str):
        return Check(name, value, expected, False)
    ok = bool(COMPARISONS[comparison](value, limit))
    rounded = () if digits is None else (round(value, more) for more in range(digits, 13))
    candidates = (each for each in rounded if COMPARISONS[comparison](each, limit) == ok)
    return Check(name, next(candidates, value), expected, ok)


def check_tail_ratio(
    name: str, values: Sequence[float], base: Sequence[float], share: float, limit: float
) -> Check:
    """Check that the tail of ``values`` is at most ``limit`` times that of ``base``.

    Fails if there are too few answers on either side.
    """
    return check_limit(name, tail_ratio(values, base, share), "<=", limit, 3)


@dataclass
class Report:
    """The result of one benchmark on one machine.

    ``rows`` share their keys, in the order of the columns; units are part of the keys.
    ``command``, ``date`` (UTC, ISO 8601), ``commit`` and ``dirty`` say what was measured and when;
    ``commit`` is None without a git checkout, ``dirty`` True if that differed from its commit.
    """

    name: str
    machine: dict[str, Any]
    versions: dict[str, str]
    rows: list[dict[str, Any]]
    checks: list[Check]
    notes: list[str] = field(default_factory=list)
    command: str = ""
    date: str = ""
    commit: str | None = None
    dirty: bool | None = None

    @property
    def ok(self) -> bool:
        """Whether every check holds."""
        return all(check.ok for check in self.checks)


def show(report: Report, console: Console | None = None) -> None:
    """Print the rows, those without a measurement by their reason, the checks and the notes."""
    console = console or _console()
    described = ", ".join(f"{key} {value}" for key, value in report.machine.items())
    console.print(f"[bold]{report.name}[/bold]: {described}")
    console.print(", ".join(f"{name} {version}" for name, version in report.versions.items()))
    if measured := [row for row in report.rows if REASON not in row]:
        console.print(_table(measured))
    for row in report.rows:
        if REASON in row:
            what = ", ".join(
                str(row[key]) for key in ("workload", "model", "engine") if key in row
            )
            console.print(f"[red]not measured[/red]  {what}: ", end="")
            console.print(row[REASON], markup=False)
    for check in report.checks:
        mark = "[green]holds[/green]" if check.ok else "[red]fails[/red]"
        text = escape(_text(check.value))
        console.print(f"{mark}  {escape(check.name)}: {text}, expected {_text(check.expected)}")
    for note in report.notes:
        console.print(note, style="dim", markup=False)


def _console() -> Console:
    """Return the terminal; a file or a pipe gets a width at which no column should be cut."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PIPE_COLUMNS)


def write_json(report: Report, file: Path) -> None:
    """Write the report's fields by their names; makes the folder. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    document = {**vars(report), "checks": [vars(check) for check in report.checks]}
    file.write_text(json.dumps(document, indent=1, default=str) + "\n")


def plot_bars(
    report: Report, folder: Path, value: str, group: str, colour: str, spread: str = ""
) -> list[Path]:
    """Plot one file for each value of key ``group``: bars of key ``value``, one for each row.

    ``colour`` names the key that labels the bars of a group; ``spread`` one with the length of the
    error bars. Rows without a number there are left out.
    """
    files = []
    for name in dict.fromkeys(row[group] for row in report.rows if group in row):
        rows = [row for row in report.rows if row.get(group) == name and _is_number(row, value)]
        if not rows:
            continue
        figure, axes = subplots(figsize=(6, 0.6 + 0.4 * len(rows)))
        errors = [row.get(spread) or 0.0 for row in rows] if spread else None
        axes.barh([str(row[colour]) for row in rows], [row[value] for row in rows], xerr=errors)
        axes.invert_yaxis()
        axes.set(xlabel=value.replace("_", " "), title=f"{report.name}: {name}")
        label = str(name).replace(" ", "-").replace("/", "-")
        files.append(save_figure(figure, folder / f"{report.name}-{label}.png"))
    return files


def subplots(rows: int = 1, columns: int = 1, **settings: Any) -> tuple[Any, Any]:
    """Return a figure and its axes, as pyplot's function of that name gives them, for a file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot.subplots(rows, columns, layout="constrained", **settings)


def save_figure(figure: Any, file: Path) -> Path:
    """Write and close one of pyplot's figures; makes the folder."""
    from matplotlib import pyplot

    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=120)
    pyplot.close(figure)
    return file


def _is_number(row: dict[str, Any], value: str) -> bool:
    return isinstance(row.get(value), (int, float))


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table()
    columns = [
        column
        for column in dict.fromkeys(key for row in rows for key in row)
        if not any(_is_long(row.get(column)) for row in rows)
    ]
    for column in columns:
        numeric = all(isinstance(row.get(column, 0), (int, float)) for row in rows)
        table.add_column(column.replace("_", " "), justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(_text(row[column]) if column in row else "" for column in columns))
    return table


def _is_long(value: Any) -> bool:
    """Whether it is a list too long for a terminal; the JSON has it."""
    return isinstance(value, list) and len(value) > _LONGEST_LIST


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
