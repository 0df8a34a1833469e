"""The pages of `docs/benchmarks`: an index, and one for each subject."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from brisk_bench.harness.report import REASON
from publication.checks import aim, mark, number, shown
from publication.pictures import picture_of
from publication.runs import PublishedRun
from publication.standing import all_flaws
from publication.subjects import OTHERS, PAGES, Page, Part, page_of

GENERATED = "<!-- Written by tools/make-results from data/*.json: change those, not this. -->"

_WIDEST = 60
"""The most characters of a text in a table; longer texts and lists are in the JSON only."""

_INDEX = """# Benchmarks

What was measured, on what, and whether it meets its aim. `tools/make-results` makes each page and
the tables below from the JSON in [data](data), which `brisk bench NAME --json FILE` writes; a test
compares them. [How it is measured](method.md): sides, clocks, machine.

Only full runs of one commit are in the tables, here and in the README: ✓ stands for one whose
checks all hold, ✗ for one with a miss.
"""

_HEADER = """
| benchmark | checks that hold | machine | date | commit | command |
| --- | --- | --- | --- | --- | --- |
"""


def all_pages(runs: Mapping[str, PublishedRun]) -> dict[str, str]:
    """Return contents by the names of files in `docs/benchmarks`."""
    flaws = all_flaws(runs)
    shown_runs = {page: list(page.runs(runs)) for page in PAGES}
    found = {"README.md": "".join([f"{GENERATED}\n{_INDEX}", *_index(runs, flaws)])}
    for page, parts in shown_runs.items():
        if parts:
            found[f"{page.name}.md"] = page_text(page, parts, flaws)
    return found


def page_text(
    page: Page, parts: Sequence[tuple[Part, PublishedRun]], flaws: Mapping[str, str]
) -> str:
    """Return a page: each run's origin, checks and rows; then all notes. ``flaws``: by file."""
    notes = dict.fromkeys(" ".join(note.split()) for _, run in parts for note in run.notes)
    files = ", ".join(f"[data/{run.file}.json](data/{run.file}.json)" for _, run in parts)
    pieces = [f"{GENERATED}\n# {page.title}\n\n{page.about}\n"]
    for part, run in parts:
        pieces += _run_text(part, run, flaws.get(run.file, ""), is_alone=len(parts) == 1)
    pieces.append(_section("## Notes\n\n", [f"- {note}\n" for note in notes]))
    return "\n".join(piece for piece in [*pieces, f"All of it: {files}.\n"] if piece)


def _run_text(part: Part, run: PublishedRun, flaws: str, *, is_alone: bool) -> Iterator[str]:
    if not is_alone:
        yield f"## {_capital(part.title_of(run.file))}\n"
    level = "##" if is_alone else "###"
    if (picture := picture_of(run)) is not None:
        yield f"![{picture.about}](../pictures/{picture.file})\n"
    origin = {
        "command": f"`{run.command}`" if run.command else "",
        "stands for": f"no full run of the published commit: {flaws}" if flaws else "",
        "date": run.date,
        "commit": _commit(run),
        "machine": ", ".join(f"{_name(key)} {value}" for key, value in run.machine.items()),
        "versions": ", ".join(f"{name} {version}" for name, version in run.versions.items()),
    }
    yield _section("| | |\n| --- | --- |\n", [_line(*each) for each in origin.items() if each[1]])
    checks = [
        _line(mark(check, flaws), check.name, shown(check), aim(check) or str(check.expected))
        for check in run.checks
    ]
    header = f"{level} Checks\n\n| | check | measured | aim |\n| --- | --- | --- | --- |\n"
    yield _section(header, checks)
    yield from _rows(run, part, level)


def _section(head: str, lines: Sequence[str]) -> str:
    """Return the head and the lines; empty without lines."""
    return "".join([head, *lines]) if lines else ""


def _index(runs: Mapping[str, PublishedRun], flaws: Mapping[str, str]) -> Iterator[str]:
    with_page = [
        (": ".join(filter(None, [page.title, part.title_of(run.file)])), f"{page.name}.md", run)
        for page in PAGES
        for part, run in page.runs(runs)
    ]
    others = [
        (OTHERS.get(file, file), f"data/{file}.json", run)
        for file, run in runs.items()
        if page_of(file) is None
    ]
    yield _HEADER
    yield from (_index_line(*each) for each in with_page if not flaws[each[2].file])
    yield f"\n## Without a page\n\nTheir rows are in the JSON only.\n{_HEADER}"
    yield from (_index_line(*each) for each in others if not flaws[each[2].file])
    rest = [each for each in (*with_page, *others) if flaws[each[2].file]]
    lines = [
        f"- [{title}]({place}): {flaws[run.file]}{f' ({_commit(run)})' if run.commit else ''}\n"
        for title, place, run in rest
    ]
    yield _section("\n## Short runs, and those of other commits\n\n", lines)


def _index_line(title: str, place: str, run: PublishedRun) -> str:
    held = sum(check.ok for check in run.checks)
    count = f"{held} of {len(run.checks)}"
    return _line(
        f"[{title}]({place})",
        f"{'✓' if held == len(run.checks) else '✗'} {count}" if run.checks else "no aims",
        _machine(run),
        run.date[:10],
        _commit(run),
        f"`{run.command}`",
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


def _rows(run: PublishedRun, part: Part, level: str) -> Iterable[str]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in run.rows:
        groups.setdefault(str(row.get(part.split, "")), []).append(row)
    for value, rows in groups.items():
        title = f"{_name(part.split)} {value}" if value else "rows"
        columns = list(dict.fromkeys(key for row in rows for key in row if key != part.split))
        yield f"{level} {_capital(title)}\n\n{_table(rows, columns, part.columns)}"


def _capital(title: str) -> str:
    return f"{title[0].upper()}{title[1:]}"


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
