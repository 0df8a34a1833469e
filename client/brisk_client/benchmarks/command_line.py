"""What every benchmark's command line has, and what becomes of its report."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from brisk_client.report import Report, show, write_json


def benchmark_parser(name: str, text: str | None, quick: str) -> argparse.ArgumentParser:
    """A parser of ``brisk bench NAME`` with ``--quick``, ``--json`` and ``--plot``.

    ``text``: the benchmark's description; ``quick``: what ``--quick`` does.
    """
    parser = argparse.ArgumentParser(prog=f"brisk bench {name}", description=text)
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

    ``plot`` draws into a folder; None where the benchmark has drawn already.
    """
    show_report(report)
    if chosen.json:
        write_json(report, chosen.json)
    if chosen.plot and plot is not None:
        plot(chosen.plot)
    return 0 if report.ok else 1
