"""Arrival times from files: the Azure inference traces, or one time a line."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

TIMESTAMP = "TIMESTAMP"
"""Column of the Azure LLM inference traces: ``2023-11-16 18:17:03.9799600``."""

MILLISECONDS = "arrival_ms"
"""Column of a plain trace: milliseconds from its start, as DISB's traces are."""


def read_trace(file: Path) -> tuple[float, ...]:
    """Arrivals in seconds from the first one (Azure) or from the start (``arrival_ms``), sorted.

    Raises ValueError naming file and line for what is neither, OSError where it cannot be read.
    """
    with file.open(newline="") as lines:
        reader = csv.DictReader(lines)
        columns = reader.fieldnames or []
        if TIMESTAMP in columns:
            return _from_first(tuple(_timestamps(reader, file)))
        if MILLISECONDS in columns:
            return tuple(sorted(_milliseconds(reader, file)))
    raise ValueError(
        f"'{file}' is no trace: its first line must name a column {TIMESTAMP} (Azure) or "
        f"{MILLISECONDS}, not {', '.join(columns) or 'nothing'}"
    )


def window(
    arrivals_s: tuple[float, ...], begin_s: float, speed: float, limit_s: float
) -> tuple[float, ...]:
    """The arrivals from ``begin_s`` on, ``speed`` times as fast, that fall within ``limit_s``."""
    moved = ((arrival_s - begin_s) / speed for arrival_s in arrivals_s if arrival_s >= begin_s)
    return tuple(arrival_s for arrival_s in moved if arrival_s < limit_s)


def _from_first(times_s: tuple[float, ...]) -> tuple[float, ...]:
    ordered = sorted(times_s)
    return tuple(time_s - ordered[0] for time_s in ordered)


def _timestamps(reader: csv.DictReader[str], file: Path) -> Iterator[float]:
    """Seconds since 1970; the traces have seven decimals, of which datetime takes six."""
    for row in reader:
        text = row[TIMESTAMP] or ""
        whole, _, fraction = text.partition(".")
        try:
            yield datetime.fromisoformat(whole).timestamp() + float(f"0.{fraction or 0}")
        except ValueError:
            raise ValueError(
                f"'{file}' line {reader.line_num}: '{text:.40}' is no time stamp"
            ) from None


def _milliseconds(reader: csv.DictReader[str], file: Path) -> Iterator[float]:
    for row in reader:
        text = row[MILLISECONDS] or ""
        try:
            arrival_ms = float(text)
        except ValueError:
            arrival_ms = -1.0
        if not 0 <= arrival_ms < float("inf"):
            raise ValueError(
                f"'{file}' line {reader.line_num}: '{text:.40}' is no number of milliseconds"
            )
        yield arrival_ms / 1e3
