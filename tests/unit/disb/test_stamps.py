"""The client's stamps and the worker's spans as one way for each request."""

from __future__ import annotations

import pytest

from brisk.protocol.records import Span
from brisk.runtime.requests.tracing import FRONTEND, SEGMENTS
from brisk_bench.disb import preemption
from brisk_bench.disb.preemption import excess_row, way_rows
from brisk_bench.disb.served import Asked, UnclearTraceError, Way, ways_of


def _spans(name: str, execute_ns: int, job_class: str = "realtime") -> list[Span]:
    """In the worker 20 ns after ``execute``, its segments 30 and 40 ns after it."""
    way = f"to the worker, {job_class}"
    return [
        Span(SEGMENTS, "1 Relu", execute_ns + 40, execute_ns + 45, name, ""),
        Span(FRONTEND, way, execute_ns, execute_ns + 20, name, ""),
        Span(SEGMENTS, "0 Conv", execute_ns + 30, execute_ns + 40, name, ""),
    ]


def test_a_way_begins_at_the_client_and_ends_where_the_first_segment_begins() -> None:
    spans = [*_spans("b", 2100), *_spans("other", 1500, "besteffort"), *_spans("a", 1100)]
    first, second = ways_of([Asked(1000, 1900), Asked(2050, 2900)], spans)
    assert (first.from_client_ns, first.from_execute_ns, first.in_worker_ns) == (130, 30, 10)
    assert second.from_client_ns == 80


def test_spans_of_other_requests_are_refused_not_guessed_at() -> None:
    with pytest.raises(UnclearTraceError, match="2 real-time requests, but spans of 1"):
        ways_of([Asked(1000, 1900), Asked(2000, 2900)], _spans("a", 1100))
    with pytest.raises(UnclearTraceError, match="not in order"):
        ways_of([Asked(1120, 1900)], _spans("a", 1100))
    with pytest.raises(UnclearTraceError, match="no segment of a"):
        ways_of([Asked(1000, 1900)], _spans("a", 1100)[1:2])


def _way(segment_ns: int) -> Way:
    return Way(Asked(0, 10_000_000), segment_ns, segment_ns - 100_000, segment_ns - 200_000)


def test_each_part_of_the_way_has_its_percentiles_and_no_tail_of_few() -> None:
    rows = {row["part"]: row for row in way_rows([_way(300_000), _way(400_000)], [_way(250_000)])}
    parts = (preemption.CLIENT, preemption.EXECUTE, preemption.IN_WORKER)
    assert [rows[part]["p50_us"] for part in parts] == [300, 200, 100]
    assert [rows[part]["alone_p50_us"] for part in parts] == [250, 150, 50]
    assert rows[preemption.EXECUTE]["worst_us"] == 300
    assert rows[preemption.CLIENT]["p99_us"] == "too few answers (2 of 1,000)"
    enough = way_rows([_way(300_000)] * 1000, [_way(250_000)] * 999)[0]
    assert enough["p99_us"] == pytest.approx(300)
    assert enough["alone_p99_us"] == "too few answers (999 of 1,000)"


def test_the_excess_is_over_the_median_alone() -> None:
    alone = [Asked(0, 10_000_000), Asked(0, 12_000_000), Asked(0, 30_000_000)]
    found = excess_row([Asked(0, 13_000_000)] * 3, alone)
    assert found["alone_p50_us"] == 12_000
    assert found["p50_us"] == pytest.approx(1000)
    assert found["p99_us"] == "too few answers (3 of 1,000)"
