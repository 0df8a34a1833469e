"""Where the time of one cold start went (PASK, Fig. 7), from its timeline.

Lanes work at the same time, so every moment is given to one activity only: what the executor
does if it computes, else the most telling thing that any lane does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

PRECEDENCE = ("run", "lookup", "substitute", "create", "transform", "read", "parse")
"""Kinds of events, the one that a moment is given to first."""

OTHER = "other"
"""Moments in which no lane does any of these: hand-overs, waits, the caller's own work."""

PHASES = (*PRECEDENCE, OTHER)


def shares(
    timeline: Sequence[Mapping[str, Any]], started_ns: int, answered_ns: int
) -> dict[str, float]:
    """Share of the time from start to answer by phase; they sum to 1.

    ``timeline``: events with ``kind``, ``start_ns`` and ``end_ns``; those outside are cut.
    """
    total_ns = answered_ns - started_ns
    if total_ns <= 0:
        return dict.fromkeys(PHASES, 0.0)
    spent_ns = dict.fromkeys(PHASES, 0)
    taken: list[tuple[int, int]] = []
    for phase in PRECEDENCE:
        events = [
            (max(event["start_ns"], started_ns), min(event["end_ns"], answered_ns))
            for event in timeline
            if event["kind"] == phase
        ]
        merged = _union([*taken, *events])
        spent_ns[phase] = _length(merged) - _length(taken)
        taken = merged
    spent_ns[OTHER] = total_ns - _length(taken)
    return {phase: spent_ns[phase] / total_ns for phase in PHASES}


def utilisation(timeline: Sequence[Mapping[str, Any]], started_ns: int, answered_ns: int) -> float:
    """Share of the time in which a layer ran (PASK, Fig. 6b: the device is active)."""
    return shares(timeline, started_ns, answered_ns)["run"]


def by_lane(timeline: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], float]:
    """Milliseconds by lane and kind of event, overlaps between lanes counted in each."""
    found: dict[tuple[str, str], float] = {}
    for event in timeline:
        key = (str(event["lane"]), str(event["kind"]))
        found[key] = found.get(key, 0.0) + (event["end_ns"] - event["start_ns"]) / 1e6
    return found


def to_chrome(
    timeline: Sequence[Mapping[str, Any]], started_ns: int, title: str
) -> dict[str, Any]:
    """The trace as chrome://tracing and Perfetto read it: one row a lane, times in µs."""
    lanes = list(dict.fromkeys(str(event["lane"]) for event in timeline))
    names: list[dict[str, Any]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": title}},
        *(
            {"ph": "M", "pid": 1, "tid": row, "name": "thread_name", "args": {"name": lane}}
            for row, lane in enumerate(lanes)
        ),
    ]
    events = [
        {
            "ph": "X",
            "pid": 1,
            "tid": lanes.index(str(event["lane"])),
            "name": event["kind"]
            if event["layer"] is None
            else f"{event['kind']} {event['layer']}",
            "cat": event["kind"],
            "ts": (event["start_ns"] - started_ns) / 1e3,
            "dur": (event["end_ns"] - event["start_ns"]) / 1e3,
            "args": {"layer": event["layer"], "stolen": event["stolen"]},
        }
        for event in timeline
    ]
    return {"traceEvents": names + events, "displayTimeUnit": "ms"}


def _union(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The spans without overlaps, in order."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if end <= start:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _length(spans: Iterable[tuple[int, int]]) -> int:
    return sum(end - start for start, end in spans)
