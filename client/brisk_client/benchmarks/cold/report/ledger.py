"""A long benchmark in pieces: rows of earlier runs are kept, and all are safe after each piece."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from brisk_client.report import Report, write_json

STABLE = ("processor", "cores", "threads")
"""Of a machine's description: what may not differ between the pieces of one report."""


class UnusableReportError(Exception):
    """There is no report to resume, or it is not of this machine and these engines."""


class Ledger:
    """The rows of a report, by pieces: a part of the benchmark, a model and a batch size.

    ``file``: where the report is written after every piece; None: nowhere. ``resumes``: rows that
    the file holds already count as measured. Raises UnusableReportError where they are of another
    machine or of other versions of the engines, or where no file was named.
    """

    def __init__(self, report: Report, file: Path | None, *, resumes: bool) -> None:
        self._report = report
        self._file = file
        self._done: set[tuple[str, str, int]] = set()
        if resumes and file is None:
            raise UnusableReportError("--resume needs --json FILE, whose rows it keeps")
        if resumes and file is not None and file.exists():
            kept = json.loads(file.read_text())
            self._check_same(kept, file)
            report.rows += kept["rows"]
            report.notes[:] = dict.fromkeys([*report.notes, *kept["notes"]])
            self._done = {
                (row["part"], row["model"], row["batch"])
                for row in report.rows
                if "model" in row and "batch" in row
            }

    def is_done(self, part: str, model: str, batch: int) -> bool:
        return (part, model, batch) in self._done

    def measure(self, part: str, model: str, batch: int, piece: Callable[[], None]) -> None:
        """Call ``piece``, which adds the rows, unless they are there; write the report."""
        if self.is_done(part, model, batch):
            return
        piece()
        self._done.add((part, model, batch))
        if self._file is not None:
            write_json(self._report, self._file)

    def _check_same(self, kept: dict[str, Any], file: Path) -> None:
        ours = self._report
        self._compare(file, "machine", kept["machine"], ours.machine, STABLE)
        self._compare(
            file, "versions", kept["versions"], ours.versions, {*kept["versions"], *ours.versions}
        )

    @staticmethod
    def _compare(
        file: Path,
        what: str,
        theirs: Mapping[str, Any],
        ours: Mapping[str, Any],
        names: Iterable[str],
    ) -> None:
        other = {name: theirs.get(name) for name in names if theirs.get(name) != ours.get(name)}
        if other:
            raise UnusableReportError(f"{file} was measured with another {what}: {other}")
