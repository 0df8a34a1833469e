"""What a benchmark found: rows to show, checks to pass; on the screen, as JSON, as a plot."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from brisk_client.tails import tail_ratio

_PIPE_COLUMNS = 180

REASON = "reason"
"""The key of a row that stands for no measurement: why there is none."""


@dataclass
class Check:
    """One expectation: the value found, what was expected, and whether it holds."""

    name: str
    value: Any
    expected: Any
    ok: bool


def check_tail_ratio(
    name: str, values: Sequence[float], base: Sequence[float], share: float, limit: float
) -> Check:
    """The tail of ``values`` is at most ``limit`` times that of ``base``.

    Does not hold where the answers of one are too few.
    """
    found = tail_ratio(values, base, share)
    is_kept = not isinstance(found, str) and found <= limit
    shown = found if isinstance(found, str) else round(found, 3)
    return Check(name, shown, f"<= {limit:g}", is_kept)


@dataclass
class Report:
    """The result of one benchmark on one machine.

    ``rows`` share their keys, in the order of the columns; units are part of the keys.
    ``command``, ``date`` (UTC, ISO 8601), ``commit`` and ``dirty`` say what was measured and when;
    ``commit`` is None where no git checkout is, ``dirty`` True where it differed from its commit.
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
            what = ", ".join(str(row[key]) for key in ("model", "engine") if key in row)
            console.print(f"[red]not measured[/red]  {what}: ", end="")
            console.print(row[REASON], markup=False)
    for check in report.checks:
        mark = "[green]holds[/green]" if check.ok else "[red]fails[/red]"
        found = escape(_text(check.value))
        console.print(f"{mark}  {escape(check.name)}: {found}, expected {_text(check.expected)}")
    for note in report.notes:
        console.print(note, style="dim", markup=False)


def _console() -> Console:
    """The terminal; a file or a pipe has no width, and no column should be cut there."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PIPE_COLUMNS)


def to_json(report: Report) -> dict[str, Any]:
    """The report's fields by their names, for json.dump."""
    return {
        "name": report.name,
        "command": report.command,
        "date": report.date,
        "commit": report.commit,
        "dirty": report.dirty,
        "machine": report.machine,
        "versions": report.versions,
        "rows": report.rows,
        "checks": [
            {"name": c.name, "value": c.value, "expected": c.expected, "ok": c.ok}
            for c in report.checks
        ],
        "notes": report.notes,
    }


def write_json(report: Report, file: Path) -> None:
    """Write ``to_json`` of the report; makes the folder. Raises OSError where it cannot."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(to_json(report), indent=1, default=str) + "\n")


def plot_bars(
    report: Report, folder: Path, value: str, group: str, colour: str, spread: str = ""
) -> list[Path]:
    """One file for each value of key ``group``: bars of key ``value``, one for each row.

    ``colour`` names the key that tells the bars of a group apart; ``spread`` one with the length
    of the error bars. Rows that lack the value, or tell why there is none, are left out.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name in dict.fromkeys(row[group] for row in report.rows if group in row):
        rows = [row for row in report.rows if row.get(group) == name and _is_number(row, value)]
        if not rows:
            continue
        figure, axes = pyplot.subplots(figsize=(6, 0.6 + 0.4 * len(rows)), layout="constrained")
        errors = [row.get(spread) or 0.0 for row in rows] if spread else None
        axes.barh([str(row[colour]) for row in rows], [row[value] for row in rows], xerr=errors)
        axes.invert_yaxis()
        axes.set_xlabel(value.replace("_", " "))
        axes.set_title(f"{report.name}: {name}")
        file = folder / f"{report.name}-{str(name).replace(' ', '-').replace('/', '-')}.png"
        figure.savefig(file, dpi=120)
        pyplot.close(figure)
        files.append(file)
    return files


def _is_number(row: dict[str, Any], value: str) -> bool:
    return isinstance(row.get(value), (int, float))


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table()
    columns = list(dict.fromkeys(key for row in rows for key in row))
    for column in columns:
        numeric = all(isinstance(row.get(column, 0), (int, float)) for row in rows)
        table.add_column(column.replace("_", " "), justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*_cells(row, columns))
    return table


def _cells(row: dict[str, Any], columns: Iterable[str]) -> list[str]:
    return [_text(row[column]) if column in row else "" for column in columns]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
