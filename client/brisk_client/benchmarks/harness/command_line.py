"""What every benchmark's command line has, and what becomes of its report."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from brisk_client.benchmarks.harness.provenance import Provenance
from brisk_client.report import Report, show, write_json


class _BenchmarkParser(argparse.ArgumentParser):
    """Notes command, time and commit when it has read the arguments, before all measuring."""

    def __init__(self, name: str, text: str | None) -> None:
        super().__init__(prog=f"brisk bench {name}", description=text)
        self._name = name

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As the base class's; the result has a ``provenance``, too."""
        given = list(sys.argv[1:] if args is None else args)
        chosen = super().parse_args(given, namespace)
        chosen.provenance = Provenance.of(self._name, given)
        return chosen


def benchmark_parser(name: str, text: str | None, quick: str) -> argparse.ArgumentParser:
    """A parser of ``brisk bench NAME`` with ``--quick``, ``--json`` and ``--plot``.

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
    show_report: Callable[[Report], None] = show,
) -> int:
    """Show the report and write what was asked for; 0 where every check holds, else 1.

    ``plot`` draws into a folder; None where the benchmark has drawn already. ``chosen``: what a
    `benchmark_parser` has read.
    """
    provenance: Provenance = chosen.provenance
    report.command, report.date = provenance.command, provenance.date
    report.commit, report.dirty = provenance.commit, provenance.dirty
    show_report(report)
    if chosen.json:
        write_json(report, chosen.json)
    if chosen.plot and plot is not None:
        plot(chosen.plot)
    return 0 if report.ok else 1
