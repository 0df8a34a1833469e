"""The common parts of every benchmark's command line, and the delivery of its report."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from brisk.errors import InvalidConfigurationError
from brisk_bench.harness.report import Report, plot_bars, show, write_json

MEASURED = ("triton_backend", "client", "bench", "model_repository")
"""Folders of a checkout whose state decides what a benchmark measures."""

OUTPUTS = ("--json", "--plot")
"""Options that say where a report goes, which does not affect what is measured."""

OF_DELIVERY = ("json", "plot", "provenance")

_GIT_S = 10.0


class UnusableArgumentError(InvalidConfigurationError):
    """An argument names what does not exist or does not fit; the message says what would."""


class _BenchmarkParser(argparse.ArgumentParser):
    """A parser that notes command, time and commit with the arguments, before all measuring."""

    def __init__(self, name: str, text: str | None) -> None:
        # Abbreviated, an option would not be seen for what it is in a published command.
        super().__init__(prog=f"brisk bench {name}", description=text, allow_abbrev=False)
        self._name = name

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as the base class does; add ``provenance``, fields of a report, to the result."""
        arguments = list(sys.argv[1:] if args is None else args)
        chosen = super().parse_args(arguments, namespace)
        commit, dirty = checkout(Path(__file__).resolve())
        chosen.provenance = {
            "command": command_line(self._name, arguments),
            "date": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "commit": commit,
            "dirty": dirty,
        }
        return chosen


def benchmark_parser(name: str, text: str | None, quick: str) -> argparse.ArgumentParser:
    """Return a parser of ``brisk bench NAME`` with ``--quick``, ``--json`` and ``--plot``.

    ``text``: the benchmark's description; ``quick``: what ``--quick`` does.
    """
    parser = _BenchmarkParser(name, text)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report there")
    parser.add_argument("--plot", type=Path, metavar="FOLDER", help="draw plots there")
    return parser


def deliver(
    report: Report,
    chosen: argparse.Namespace,
    plot: Callable[[Path], object] | None,
) -> int:
    """Show the report and write what was asked for; return 0 if every check holds, else 1.

    ``plot`` draws into a folder. ``chosen``: the arguments that a `benchmark_parser` has read.
    """
    for name, value in chosen.provenance.items():
        setattr(report, name, value)
    show(report)
    if chosen.json:
        write_json(report, chosen.json)
    if chosen.plot and plot is not None:
        plot(chosen.plot)
    return 0 if report.ok else 1


def run_command(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str],
    run: Callable[..., Report],
    plot: Callable[[Report, Path], object],
) -> int:
    """Give ``run`` the options that a `benchmark_parser` reads, by name, and deliver its report.

    Ends with the parser's usage if an argument is unusable.
    """
    chosen = parser.parse_args(arguments)
    options = {name: value for name, value in vars(chosen).items() if name not in OF_DELIVERY}
    try:
        report = run(**options)
    except UnusableArgumentError as error:
        parser.error(str(error))
    return deliver(report, chosen, lambda folder: plot(report, folder))


def bars(
    value: str, group: str, colour: str, spread: str = ""
) -> Callable[[Report, Path], object]:
    """Return a function that plots these columns; see ``plot_bars``."""
    return lambda report, folder: plot_bars(report, folder, value, group, colour, spread)


def listed(text: str) -> list[str]:
    """Parse an option A,B; empty names are left out."""
    return [name for name in text.split(",") if name]


def check_known(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Raise UnusableArgumentError, which lists the known names, for an unknown one."""
    known = list(known)
    for name in names:
        if name not in known:
            raise UnusableArgumentError(
                f"there is no {what} '{name}'; there are: {', '.join(known)}"
            )


def command_line(name: str, arguments: Sequence[str]) -> str:
    """Return the command without `OUTPUTS`; of absolute paths the last component only."""
    words: list[str] = []
    remaining = iter(arguments)
    for word in remaining:
        option, equals, value = word.partition("=")
        if option in OUTPUTS:
            if not equals:
                next(remaining, None)
        elif equals and value.startswith("/"):
            words.append(f"{option}={Path(value).name}")
        else:
            words.append(Path(word).name if word.startswith("/") else word)
    return shlex.join(["brisk", "bench", name, *words])


def checkout(file: Path) -> tuple[str | None, bool | None]:
    """Return the commit that the checkout of ``file`` has, and whether `MEASURED` differs from it.

    (None, None) without git, and for a file that a checkout merely contains, such as one of an
    environment inside of it.
    """
    folder = file.parent
    if _git(folder, "ls-files", "--error-unmatch", str(file)) is None:
        return None, None
    top, commit = _git(folder, "rev-parse", "--show-toplevel"), _git(folder, "rev-parse", "HEAD")
    if top is None or commit is None:
        return None, None
    there = [name for name in MEASURED if (Path(top) / name).exists()]
    state = _git(Path(top), "status", "--porcelain", "--", *(there or ["."]))
    return commit, None if state is None else bool(state)


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=_GIT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
