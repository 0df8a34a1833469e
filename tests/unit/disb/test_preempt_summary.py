"""Ratios and checks of `brisk bench preempt`, from given samples and rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import pytest

from brisk.graph.reader import read_program
from brisk_client.benchmarks.preempt import plot_figures
from brisk_client.disb import comparison, preemption
from brisk_client.disb.networks import NETWORKS, PROBE_WIDTH, chain_of
from brisk_client.disb.sampling import WorkloadSample, describe, median_ratio, summarise_side
from brisk_client.disb.wire import Timed
from brisk_client.report import Report


def _sample(latency_ms: list[float], per_s: float) -> WorkloadSample:
    return WorkloadSample(latency_ms, per_s, 0, 0, [], 0.02, busy=0.75, stolen=0.01)


def _report(rows: list[dict[str, Any]]) -> Report:
    return Report("preempt", {}, {}, rows, [])


def test_ratios_of_means_are_taken_within_a_round_and_tails_of_all_rounds() -> None:
    """The second round's machine is twice as slow; the side is 10 % slower in the first."""
    samples = {
        "RT-only": [_sample([10.0] * 500, 5.0), _sample([20.0] * 500, 5.0)],
        "padded": [_sample([11.0] * 500, 15.0), _sample([24.0] * 500, 10.0)],
    }
    row = summarise_side(samples, "padded")
    assert row["mean_ratio"] == pytest.approx(1.15)
    assert row["mean_ratio_range"] == [1.1, 1.2]
    assert row["p99_ratio"] == pytest.approx(24 / 20)
    assert row["throughput_ratio"] == pytest.approx(2.5)
    assert row["mean_ms"] == pytest.approx(17.5)
    assert row["p99_ms"] == 24.0
    assert row["quantiles_ms"] == [11.0] * 51 + [24.0] * 49, "0 % to 99 % of both rounds"
    assert row["p999_ms"] == "too few answers (1,000 of 10,000)"
    assert row["round_busy"] == [0.75, 0.75], "else nobody knows why the second was slower"


def test_few_answers_have_no_p99_anywhere() -> None:
    samples = {name: [_sample([10.0] * 499, 5.0)] * 2 for name in ("RT-only", "padded")}
    row = summarise_side(samples, "padded")
    lacking = "too few answers (998 of 1,000)"
    assert (row["p99_ms"], row["p99_ratio"]) == (lacking, lacking)
    assert row["mean_ratio"] == 1.0
    assert "p99_ms too few answers (499 of 1,000)" in describe(samples["padded"][0])


def test_sides_are_compared_round_by_round_where_both_answered() -> None:
    assert median_ratio([10.0, 7.0, 90.0], [5.0, 0.0, 30.0]) == pytest.approx(2.5)
    assert median_ratio([10.0], [0.0]) is None


def test_a_side_without_answers_has_no_times() -> None:
    samples = {"RT-only": [_sample([10.0], 5.0)], "triton": [_sample([], 0.0)]}
    row = summarise_side(samples, "triton")
    assert "mean_ms" not in row
    assert row["realtime_answers"] == 0


def _row(workload: str, side: str, **values: Any) -> dict[str, Any]:
    return {
        "workload": workload,
        "side": side,
        "mean_ratio": 1.0,
        "p99_ratio": 1.0,
        "throughput_ratio": 3.0,
        "p90_ms": 8.0,
        "p99_ms": 10.0,
        "round_per_s": [100.0, 100.0, 50.0],
        **values,
    }


def test_checks_hold_and_fail_by_the_rows() -> None:
    report = _report(
        [
            _row("C", "padded", mean_ratio=1.03, p99_ratio=1.09),
            _row("C", "shared", round_per_s=[120.0, 90.0, 60.0]),
            _row("C", "triton two runs", p90_ms=20.0, p99_ms=70.0),
            _row("C", "triton one run", p90_ms=21.0, p99_ms=31.0),
            _row("C", "triton free", stage="screening", p90_ms=1.0, p99_ms=1.0),
            _row("E", "padded", throughput_ratio=1.5),
            _row("B", "padded", mean_ratio=9.0),
        ]
    )
    comparison.add_checks(report)
    found = {check.name: check.ok for check in report.checks}
    assert found == {
        "C: real-time mean / RT-only": False,
        "C: real-time p99 / RT-only": True,
        "C: throughput / shared": False,
        "C: real-time p99 of triton one run, Triton's best, / ours": True,
        "E: real-time mean / RT-only": True,
        "E: real-time p99 / RT-only": True,
        "E: throughput / RT-only": False,
    }


def test_checks_of_tails_fail_for_want_of_answers() -> None:
    lacking = "too few answers (9 of 1,000)"
    report = _report(
        [
            _row("C", "padded", p99_ratio=lacking, p99_ms=lacking),
            _row("C", "triton one run", p90_ms=21.0, p99_ms=90.0),
        ]
    )
    comparison.add_checks(report)
    failed = {check.name: check.value for check in report.checks if not check.ok}
    assert failed == {
        "C: real-time p99 / RT-only": lacking,
        "C: real-time p99 of triton one run, Triton's best, / ours": lacking,
    }


def test_preemption_must_be_short_and_independent_of_the_layers() -> None:
    def rows(figure: str, p50_us: float, p99_us: float | str, ms: float = 1) -> list[Any]:
        return [
            {
                "figure": figure,
                "policy": "padded",
                "part": part,
                "p50_us": p50_us,
                "p99_us": p99_us if part != preemption.IN_WORKER else 100.0,
                "layer_ms": ms,
            }
            for part in (preemption.CLIENT, preemption.EXECUTE, preemption.IN_WORKER)
        ]

    report = _report([*rows("12", 90, 150), *rows("13", 90, 150), *rows("13", 200, 900, 300)])
    preemption.add_checks(report)
    assert [(check.name, check.ok) for check in report.checks] == [
        ("from execute to the first layer, p99 over all networks, us", True),
        ("in worker to the first layer, p99 over all networks, us", True),
        ("from execute to the first layer, p99 over all layer lengths, us", False),
        ("in worker to the first layer, p99 over all layer lengths, us", True),
        ("from client to the first layer, p50, layers of 300 ms / of 1 ms", False),
        ("from execute to the first layer, p50, layers of 300 ms / of 1 ms", False),
    ]
    report = _report([*rows("12", 90, 150), *rows("12", 90, "too few answers (9 of 1,000)")])
    preemption.add_checks(report)
    assert [check.ok for check in report.checks] == [False, True]
    assert report.checks[0].value == "too few answers (9 of 1,000)"


def test_the_overlap_of_two_runs() -> None:
    background = Timed(0, 100, 1000, 800, b"")
    overlap = preemption.overlap_ns
    assert overlap(Timed(0, 200, 0, 300, b""), background) == 300
    assert overlap(Timed(0, 850, 0, 300, b""), background) == 50
    assert overlap(Timed(0, 950, 0, 300, b""), background) == 0


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_has_the_paper_s_number_of_layers(name: str, tmp_path: Path) -> None:
    network = NETWORKS[name]
    file = tmp_path / "model.onnx"
    onnx.save(network.build(), file)
    counts = Counter(layer.operator for layer in read_program(file).layers)
    behind_others = counts["Add"] + counts["Relu"] - counts["BatchNormalization"]
    movements = counts["Reshape"] + counts["Transpose"] + counts["Identity"]
    heads = 3 * counts["Attention"]  # one layer with it
    layers = counts.total() - behind_others - movements - heads
    assert layers == pytest.approx(network.layers, rel=0.05)


def test_a_chain_of_longer_layers_has_wider_and_fewer_ones() -> None:
    short, long = chain_of(1.0, 5.0), chain_of(40.0, 5.0)
    products = [
        sum(node.op_type == "MatMul" for node in model.graph.node) for model in (short, long)
    ]
    assert products == [60, 2]
    widths = [model.graph.initializer[0].dims[0] for model in (short, long)]
    assert widths == [368, 2 * PROBE_WIDTH]
    sizes = [size.dim_value for size in long.graph.input[0].type.tensor_type.shape.dim]
    assert sizes == [1, 1], "a request for long layers costs the server no more than any other"


def test_figures_are_drawn_for_the_rows_that_are_there(tmp_path: Path) -> None:
    few = "too few answers (9 of 1,000)"
    found = {
        "policy": "padded",
        "part": preemption.EXECUTE,
        "best_effort": "chain",
        "p50_us": 90.0,
        "p99_us": few,
    }
    theirs = {**found, "figure": "13", "policy": "triton free", "part": preemption.EXCESS}
    layers = [{"figure": "13", "layer_ms": length, **found} for length in (1.0, 300.0)]
    layers.append(theirs)
    pair = {"figure": "16", "policy": "shared", "realtime": "vgg", "best_effort": "vgg"}
    pairs = [{**pair, "slowdown": 1.5, "best_effort_share": 0.4}]
    workloads = [
        _row("C", side, mean_ms=9.0, p99_ms=p99_ms, per_s=40.0)
        for side, p99_ms in (("triton one run", 30.0), ("new", few))
    ]
    files = plot_figures(_report([*layers, *pairs, *workloads]), tmp_path)
    assert [file.name for file in files] == [
        "preempt-C.png",
        "preempt-13-1.0.png",
        "preempt-13-300.0.png",
        "preempt-16-shared.png",
    ]
    assert all(file.stat().st_size > 3_000 for file in files)


def test_no_figure_is_drawn_where_no_side_has_enough_answers_for_a_tail(tmp_path: Path) -> None:
    few = "too few answers (9 of 1,000)"
    rows = [_row("C", side, mean_ms=9.0, p99_ms=few, per_s=40.0) for side in ("padded", "shared")]
    assert plot_figures(_report(rows), tmp_path) == []
