"""The plots of published runs, and the pages that show them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from brisk_bench.harness.tails import CURVE
from publication.clients_plot import clients_plot
from publication.latency_plot import QUANTILES, SIDES, latency_plot
from publication.pages import all_pages
from publication.pictures import PICTURES, all_pictures, left_as_they_are, picture_of
from publication.promise_plot import promise_plot
from publication.runs import UnusableRunError
from publication.start_plot import ENGINES, PARTS, start_plot
from support.published_runs import run_of


def points_of(drawn: str, kind: str) -> list[tuple[float, float]]:
    """Of the longest line of that kind; the shorter one is the legend's."""
    lines = re.findall(rf'<polyline points="([^"]+)" class="curve {kind}"/>', drawn)
    longest = max(lines, key=len)
    return [(float(x), float(y)) for x, y in (each.split(",") for each in longest.split())]


def bars_of(drawn: str, kind: str) -> list[float]:
    """Widths of all but the heading's."""
    found = re.findall(rf'width="([\d.]+)" height="[\d.]+" class="{kind}"', drawn)
    return [float(width) for width in found[1:]]


def side_row(side: str, **changed: Any) -> dict[str, Any]:
    """Latencies from 10 ms to 20 ms, as of 1,000 answers, evenly."""
    quantiles = [10.0 + 10 * share for share in CURVE if share <= 0.99]
    return {"workload": "C", "side": side, QUANTILES: quantiles, **changed}


def test_the_plot_of_latency_has_a_curve_for_each_side_that_ends_where_its_answers_do(
    tmp_path: Path,
) -> None:
    rows = [side_row(side) for side in SIDES]
    rows += [side_row("triton one run", stage="screening"), side_row("preemptive", workload="D")]
    drawn = latency_plot(run_of(tmp_path, rows=rows))
    assert drawn.count("<polyline") == 2 * len(SIDES)
    points = points_of(drawn, "ours")
    assert len(points) == 100, "0 % to 99 %"
    assert points[0][1] > points[50][1] > points[-1][1], "shares grow upwards"
    middle = (points[0][0] + points[-1][0]) / 2
    assert points[50][0] > middle, "by logarithms 15 is more than half-way from 10 to 20"
    for label, _ in SIDES.values():
        assert f">{label.replace(chr(39), '&#x27;')}</text>" in drawn


@pytest.mark.parametrize(
    "wrong",
    [
        {QUANTILES: [10.0] * 40},
        {QUANTILES: [0.0] * 100},
        {QUANTILES: [20.0, *[10.0] * 99]},
        {QUANTILES: None},
        {"workload": "D"},
    ],
)
def test_a_plot_without_a_side_or_its_distribution_is_refused(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    rows = [*[side_row(side) for side in SIDES][1:], side_row("RT-only", **wrong)]
    with pytest.raises(UnusableRunError, match="'RT-only', wanted is one"):
        latency_plot(run_of(tmp_path, rows=rows))


def start_row(engine: str, **changed: Any) -> dict[str, Any]:
    parts = {"stub_ms": 40.0, "parse_ms": None, "load_ms": 20.0, "run_ms": 60.0}
    return {"model": "resnet50", "engine": engine, "first_ms": 121.0, **parts, **changed}


def test_the_plot_of_first_answers_stacks_what_was_measured(tmp_path: Path) -> None:
    rows = [start_row(engine) for engine in ENGINES]
    rows[0] = start_row("brisk", parse_ms=10.0)
    drawn = start_plot(run_of(tmp_path, rows=rows))
    stub, parse, load, run = (bars_of(drawn, kind) for kind, _ in PARTS.values())
    assert stub == pytest.approx([2 * width for width in load], abs=0.2)
    assert run == pytest.approx([3 * width for width in load], abs=0.2)
    assert parse == pytest.approx([load[0] / 2, *[0.0] * (len(ENGINES) - 1)], abs=0.2)
    assert drawn.count(">121<") == len(ENGINES), "the median of the whole, in a column"
    assert drawn.count(">10<") == 1
    assert drawn.count(">in load<") == len(ENGINES) - 1


def test_a_plot_of_first_answers_without_an_engine_or_a_part_is_refused(tmp_path: Path) -> None:
    rows = [start_row(engine) for engine in ENGINES]
    for wrong in (rows[1:], [start_row("brisk", load_ms=None), *rows[1:]]):
        with pytest.raises(UnusableRunError, match="'brisk', wanted is one"):
            start_plot(run_of(tmp_path, rows=wrong))


def promise_row(side: str, speed_up: float, **changed: Any) -> dict[str, Any]:
    return {"side": side, "batch": 1, "speed_up": speed_up, "agreement": 0.9876, **changed}


def test_the_plot_of_promises_shows_what_each_costs_and_what_was_measured(tmp_path: Path) -> None:
    rows = [
        promise_row("bare", 1.0),
        promise_row("caches, 99.5%", 2.0, early_agreement=0.9988),
        promise_row("caches, 97%", 4.0),
        promise_row("caches, 97%", 9.0, batch=8),
    ]
    drawn = promise_plot(run_of(tmp_path, rows=rows))
    (loose_x, loose_y), (strict_x, strict_y) = points_of(drawn, "ours")
    assert loose_x < strict_x
    assert loose_y < strict_y, "faster is higher"
    assert drawn.count("all 98.76%") == 2
    assert drawn.count("early 99.88%") == 1
    with pytest.raises(UnusableRunError, match="1 rows are of a promise"):
        promise_plot(run_of(tmp_path, rows=rows[:2]))


def throughput_row(side: str, clients: int, per_s: float, **changed: Any) -> dict[str, Any]:
    load = {"transport": "gRPC", "load": "closed", "batching": True}
    return {"model": "mlp/1", "side": side, "clients": clients, "per_s": per_s, **load, **changed}


def test_the_plot_of_throughput_has_a_panel_for_each_way_of_batching(tmp_path: Path) -> None:
    rows = [
        *(throughput_row("Brisk", clients, 1000.0 * clients) for clients in (1, 4)),
        *(throughput_row("Python, joined", clients, 500.0 * clients) for clients in (1, 4)),
    ]
    others = [{"transport": "HTTP"}, {"load": "open, 50%"}]
    rows += [throughput_row("Brisk", 4, 9e9, **other) for other in others]
    drawn = clients_plot(run_of(tmp_path, rows=rows))
    ours, theirs = points_of(drawn, "ours"), points_of(drawn, "peer")
    assert len(ours) == len(theirs) == 2
    assert ours[0][0] == theirs[0][0]
    assert ours[1][1] < theirs[1][1] < theirs[0][1], "more answers are higher"
    rows += [throughput_row("Brisk", clients, 800.0, batching=False) for clients in (1, 4)]
    both = clients_plot(run_of(tmp_path, rows=rows))
    assert [text.count(">clients</text>") for text in (drawn, both)] == [1, 2]
    with pytest.raises(UnusableRunError, match="two numbers of clients"):
        clients_plot(run_of(tmp_path, rows=rows[:1]))


def test_a_picture_stays_as_it_is_where_its_run_is_older_than_what_it_shows(
    tmp_path: Path,
) -> None:
    name = "preempt-workloads-C"
    old = run_of(tmp_path, name, rows=[{"workload": "C", "side": side} for side in SIDES])
    assert [*all_pictures({name: old})] == []
    assert [*left_as_they_are({name: old})] == [
        "realtime.svg is left as it is: no row of preempt-workloads-C.json has quantiles_ms"
    ]
    assert "pictures/" not in all_pages({name: old})["preempt-workloads.md"]
    new = run_of(tmp_path, name, rows=[side_row(side) for side in SIDES])
    assert [file for file, _ in all_pictures({name: new})] == ["realtime.svg"]
    assert [*left_as_they_are({name: new})] == []
    assert picture_of(new) is PICTURES[name]
    text = all_pages({name: new})["preempt-workloads.md"]
    assert "](../pictures/realtime.svg)" in text
    assert "quantiles" not in text, "a list is in the JSON only"
