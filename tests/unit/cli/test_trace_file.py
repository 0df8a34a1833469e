"""Timelines as Perfetto reads them."""

from __future__ import annotations

import json
from pathlib import Path

from brisk.cli.commands.trace import ProcessSpans, write_perfetto, write_picture
from brisk.protocol.records import Span
from brisk.telemetry.events import MAX_SPANS, SpanRecorder

MS = 1_000_000


def span(lane: str, name: str, begin_ms: int, end_ms: int) -> Span:
    return Span(lane, name, begin_ms * MS, end_ms * MS, f"request {name}", "{}")


WORKER = ProcessSpans(
    7,
    "worker",
    (
        span("layers", "0 Conv", 12, 14),
        span("layers", "1 Relu", 14, 15),
        span("queue", "a", 10, 12),
        span("queue", "b", 11, 16),
    ),
)


def events(path: Path) -> list[dict[str, object]]:
    write_perfetto([ProcessSpans(3, "client", (span("client", "ask", 9, 20),)), WORKER], path)
    document = json.loads(path.read_text())
    return list(document["traceEvents"])


def test_times_are_microseconds_from_the_first_span(tmp_path: Path) -> None:
    whole = {each["name"]: each for each in events(tmp_path / "trace.json") if each["ph"] == "X"}
    assert (whole["ask"]["ts"], whole["ask"]["dur"]) == (0, 11_000)
    assert (whole["0 Conv"]["ts"], whole["0 Conv"]["dur"]) == (3_000, 2_000)
    assert whole["0 Conv"]["args"] == {"request": "request 0 Conv", "details": "{}"}


def test_spans_that_overlap_are_matched_by_an_id(tmp_path: Path) -> None:
    waits = [each for each in events(tmp_path / "trace.json") if each.get("cat") == "queue"]
    by_id: dict[object, list[object]] = {}
    for each in waits:
        by_id.setdefault(each["id"], []).append((each["ph"], each["name"], each["ts"]))
    assert sorted(by_id.values(), key=str) == [
        [("b", "a", 1_000), ("e", "a", 3_000)],
        [("b", "b", 2_000), ("e", "b", 7_000)],
    ]


def test_processes_and_lanes_have_their_names(tmp_path: Path) -> None:
    named = [each for each in events(tmp_path / "trace.json") if each["ph"] == "M"]
    assert [(each["pid"], each["args"]) for each in named] == [
        (3, {"name": "client"}),
        (3, {"name": "client"}),
        (7, {"name": "worker"}),
        (7, {"name": "layers"}),
        (7, {"name": "queue"}),
    ]


def test_the_picture_calls_segments_by_their_name(tmp_path: Path) -> None:
    write_picture([WORKER], tmp_path / "trace.svg")
    drawn = (tmp_path / "trace.svg").read_text()
    assert "worker: segments" in drawn
    assert "worker: queue" in drawn


def test_the_picture_is_one_even_of_nothing(tmp_path: Path) -> None:
    for name, processes in (("full.png", [WORKER]), ("empty.png", [ProcessSpans(1, "x", ())])):
        write_picture(processes, tmp_path / name)
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_nothing_is_recorded_until_it_is_asked_for_and_no_more_than_there_is_room_for() -> None:
    recorder = SpanRecorder()
    recorder.add("layers", "before", 0, 1)
    recorder.begin()
    for number in range(MAX_SPANS + 3):
        recorder.add("layers", str(number), 0, 1)
    spans, left_out = recorder.end()
    recorder.add("layers", "after", 0, 1)
    assert (len(spans), spans[0].name, left_out) == (MAX_SPANS, "0", 3)
    recorder.begin()
    assert recorder.end() == ([], 0)
