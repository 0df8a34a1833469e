"""How `brisk bench cold` divides a cold start's time."""

from __future__ import annotations

from typing import Any

import pytest

from brisk_client.benchmarks.cold.breakdown import by_lane, shares, to_chrome, utilisation


def _event(
    lane: str, kind: str, start_ns: int, end_ns: int, layer: int | None = 0
) -> dict[str, Any]:
    return {
        "lane": lane,
        "kind": kind,
        "layer": layer,
        "start_ns": start_ns,
        "end_ns": end_ns,
        "stolen": False,
    }


TIMELINE = [
    _event("parse", "parse", 100, 200, None),
    _event("load-0", "read", 150, 300),
    _event("load-0", "create", 300, 500),
    _event("issue", "run", 400, 600),
    _event("issue", "wait", 600, 900),
    _event("load-0", "transform", 700, 800),
]


def test_every_moment_is_given_to_one_phase() -> None:
    found = shares(TIMELINE, 100, 1100)
    assert found == pytest.approx(
        {
            "run": 0.2,
            "lookup": 0.0,
            "substitute": 0.0,
            "create": 0.1,
            "transform": 0.1,
            "read": 0.15,
            "parse": 0.05,
            "other": 0.4,
        }
    )
    assert sum(found.values()) == pytest.approx(1.0)


def test_events_outside_of_the_first_answer_are_cut() -> None:
    found = shares([_event("issue", "run", 0, 150), _event("warm", "create", 190, 900)], 100, 200)
    assert found["run"] == pytest.approx(0.5)
    assert found["create"] == pytest.approx(0.1)


def test_runs_on_two_lanes_at_once_count_once_for_utilisation() -> None:
    both = [_event("a", "run", 0, 60), _event("b", "run", 30, 80)]
    assert utilisation(both, 0, 100) == pytest.approx(0.8)


def test_nothing_measured_is_no_division_by_zero() -> None:
    assert sum(shares([], 5, 5).values()) == 0.0


def test_lanes_keep_their_overlaps() -> None:
    found = by_lane(TIMELINE)
    assert found["load-0", "read"] == pytest.approx(150e-6)
    assert found["issue", "run"] == pytest.approx(200e-6)


def test_the_trace_has_a_row_for_each_lane_and_times_from_the_start() -> None:
    trace = to_chrome(TIMELINE, 100, "model")
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert {event["tid"] for event in spans} == {0, 1, 2}
    assert spans[0]["ts"] == 0.0
    assert spans[0]["dur"] == pytest.approx(0.1)
    assert spans[1]["name"] == "read 0"
