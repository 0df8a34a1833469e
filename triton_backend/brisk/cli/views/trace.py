"""A timeline as a file for Perfetto (https://ui.perfetto.dev) and as a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from brisk.protocol.records import Span

LABELLED_SHARE = 0.05
"""Spans as long as this share of the whole get their name written on them in the picture."""


@dataclass(frozen=True, slots=True)
class ProcessSpans:
    """The spans of one process; ``name`` as it is shown."""

    pid: int
    name: str
    spans: tuple[Span, ...]


def write_perfetto(processes: Sequence[ProcessSpans], file: Path) -> None:
    """The Trace Event Format: one row for each lane; times in microseconds from the first span.

    Spans of a queue overlap, so they are asynchronous events, matched by an id.
    """
    origin_ns = _origin_ns(processes)
    events: list[dict[str, object]] = []
    identity = 0
    for process in processes:
        events.append(_named("process_name", process.pid, 0, process.name))
        lanes = list(dict.fromkeys(span.lane for span in process.spans))
        for number, lane in enumerate(lanes, start=1):
            events.append(_named("thread_name", process.pid, number, lane))
        for span in process.spans:
            identity += 1
            place = {
                "name": span.name,
                "cat": span.lane,
                "pid": process.pid,
                "tid": lanes.index(span.lane) + 1,
            }
            begin_us = (span.begin_ns - origin_ns) / 1e3
            end_us = (span.end_ns - origin_ns) / 1e3
            more = {"args": {"request": span.request, "details": span.details}}
            if _overlaps(span.lane, process.spans):
                events.append({**place, "ph": "b", "id": identity, "ts": begin_us, **more})
                events.append({**place, "ph": "e", "id": identity, "ts": end_us})
            else:
                length = {"ts": begin_us, "dur": end_us - begin_us}
                events.append({**place, "ph": "X", **length, **more})
    file.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))


def write_picture(processes: Sequence[ProcessSpans], file: Path) -> None:
    """A bar for each span, a row for each lane."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    origin_ns = _origin_ns(processes)
    rows = [
        (process, lane)
        for process in processes
        for lane in dict.fromkeys(span.lane for span in process.spans)
    ]
    figure, axes = pyplot.subplots(figsize=(14, 1 + 0.6 * len(rows)), layout="constrained")
    last_ns = max((span.end_ns for each in processes for span in each.spans), default=0)
    labelled_ns = LABELLED_SHARE * (last_ns - origin_ns)
    for height, (process, lane) in enumerate(rows):
        for number, span in enumerate(each for each in process.spans if each.lane == lane):
            begin_ms = (span.begin_ns - origin_ns) / 1e6
            length_ms = (span.end_ns - span.begin_ns) / 1e6
            colour = f"C{number % 10}"
            axes.barh(height, length_ms, left=begin_ms, color=colour, height=0.8, alpha=0.8)
            if span.end_ns - span.begin_ns >= labelled_ns:
                middle = begin_ms + length_ms / 2
                axes.text(middle, height, span.name, ha="center", va="center", fontsize=7)
    axes.set_yticks(range(len(rows)), [f"{process.name}: {lane}" for process, lane in rows])
    axes.invert_yaxis()
    axes.set_xlabel("ms")
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def _origin_ns(processes: Sequence[ProcessSpans]) -> int:
    return min((span.begin_ns for process in processes for span in process.spans), default=0)


def _named(kind: str, pid: int, tid: int, name: str) -> dict[str, object]:
    return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}}


def _overlaps(lane: str, spans: Sequence[Span]) -> bool:
    """Whether two spans of the lane overlap without one lying in the other."""
    open_ends: list[int] = []
    own = (span for span in spans if span.lane == lane)
    for span in sorted(own, key=lambda each: (each.begin_ns, -each.end_ns)):
        while open_ends and open_ends[-1] <= span.begin_ns:
            open_ends.pop()
        if open_ends and span.end_ns > open_ends[-1]:
            return True
        open_ends.append(span.end_ns)
    return False
