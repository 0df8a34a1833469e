"""One row for each request that was sent, written as the run goes."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TextIO

OK = "ok"
UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True)
class Row:
    """A request. Times are ns from the run's start.

    ``scheduled_ns``: when it was due; latency counts from here. ``free_ns``: when its client
    could have sent it. ``status``: ``ok``, ``unfinished`` (the run was over), or a gRPC status.
    ``dropped``: stale arrivals forgotten just before it.
    """

    task: str
    job_class: str
    model: str
    serial: int
    scheduled_ns: int
    free_ns: int
    sent_ns: int
    done_ns: int
    status: str
    dropped: int

    @property
    def latency_ns(self) -> int:
        return self.done_ns - self.scheduled_ns

    @property
    def lag_ns(self) -> int:
        """How late the generator itself was: from when it could and should have sent."""
        return self.sent_ns - max(self.scheduled_ns, self.free_ns)


COLUMNS = tuple(field.name for field in fields(Row))


class RowWriter:
    """Appends to a file: JSON lines where its name ends in ``.jsonl``, else CSV."""

    def __init__(self, file: Path) -> None:
        """Raises OSError where the file cannot be made."""
        file.parent.mkdir(parents=True, exist_ok=True)
        self._output: TextIO = file.open("w", newline="")
        self._csv = None if file.suffix == ".jsonl" else csv.writer(self._output)
        if self._csv is not None:
            self._csv.writerow(COLUMNS)

    def write(self, row: Row) -> None:
        values = asdict(row)
        if self._csv is None:
            self._output.write(json.dumps(values) + "\n")
        else:
            self._csv.writerow(values.values())

    def close(self) -> None:
        self._output.close()


def read_rows(file: Path) -> Iterator[Row]:
    """The rows of a CSV file that ``RowWriter`` wrote."""
    with file.open(newline="") as lines:
        for values in csv.DictReader(lines):
            yield Row(**{name: _PARSERS[name](text) for name, text in values.items()})


_PARSERS: dict[str, Any] = {
    **dict.fromkeys(COLUMNS, int),
    **dict.fromkeys(("task", "job_class", "model", "status"), str),
}
