"""Ratios and checks of `brisk bench preempt`, from given samples and rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

from brisk.graph import read_program
from brisk_client.disb import comparison, preemption
from brisk_client.disb.chains import PROBE_WIDTH, chain_of
from brisk_client.disb.figures import plot_figures
from brisk_client.disb.machine_time import MachineTime, between, read_ticks
from brisk_client.disb.networks import NETWORKS
from brisk_client.disb.probe import Timed
from brisk_client.disb.sampling import Sample, median_ratio, quantile, summarise_side
from brisk_client.report import Report


def _sample(latency_ms: list[float], per_s: float) -> Sample:
    return Sample(tuple(latency_ms), per_s, 0, 0, 0.1, 0.02, MachineTime(0.75, 0.01))


def _report(rows: list[dict[str, Any]]) -> Report:
    return Report("preempt", {}, {}, rows, [])


def test_ratios_are_taken_within_a_round() -> None:
    """The second round's machine is twice as slow; the side is 10 % slower in both."""
    samples = {
        "RT-only": [_sample([10.0, 10.0], 5.0), _sample([20.0, 20.0], 5.0)],
        "padded": [_sample([11.0, 11.0], 15.0), _sample([22.0, 22.0], 10.0)],
    }
    row = summarise_side(samples, "padded")
    assert row["mean_ratio"] == pytest.approx(1.1)
    assert row["p99_ratio"] == pytest.approx(1.1)
    assert row["throughput_ratio"] == pytest.approx(2.5)
    assert row["mean_ms"] == pytest.approx(16.5)
    assert row["round_p99_ms"] == [11.0, 22.0]
    assert row["round_busy"] == [0.75, 0.75], "else nobody knows why the second was slower"


def test_what_the_processors_did_is_told_by_shares_of_their_time() -> None:
    """Waiting for a disk is idle; a guest's time is in the user's already."""
    before = read_ticks("cpu  100 10 50 800 20 0 5 15 90 9\ncpu0 1 2 3 4 5 6 7 8 0 0\n")
    after = read_ticks("cpu  150 20 60 820 30 0 5 35 95 9\n")
    assert between(before, after) == MachineTime(70 / 120, 20 / 120)
    assert read_ticks()[3] > 0


def test_sides_are_compared_round_by_round_where_both_answered() -> None:
    one = {"round_p99_ms": [10.0, None, 90.0]}
    other = {"round_p99_ms": [5.0, 7.0, 30.0]}
    assert median_ratio(one, other, "round_p99_ms") == pytest.approx(2.5)
    assert median_ratio(one, {"round_p99_ms": [None, 7.0, None]}, "round_p99_ms") is None


def test_a_side_without_answers_has_no_times() -> None:
    samples = {"RT-only": [_sample([10.0], 5.0)], "triton": [_sample([], 0.0)]}
    row = summarise_side(samples, "triton")
    assert "mean_ms" not in row
    assert row["realtime_answers"] == 0


def test_quantiles_are_by_nearest_rank() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert [quantile(values, share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 100.0]


def _row(workload: str, side: str, **values: Any) -> dict[str, Any]:
    return {
        "workload": workload,
        "side": side,
        "mean_ratio": 1.0,
        "p99_ratio": 1.0,
        "throughput_ratio": 3.0,
        "round_p99_ms": [10.0, 10.0, 20.0],
        "round_per_s": [100.0, 100.0, 50.0],
        **values,
    }


def test_checks_hold_and_fail_by_the_rows() -> None:
    report = _report(
        [
            _row("C", "padded", mean_ratio=1.03, p99_ratio=1.09),
            _row("C", "shared", round_per_s=[120.0, 90.0, 60.0]),
            _row("C", "triton", round_p99_ms=[29.0, 31.0, 70.0]),
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
        "C: Triton's real-time p99 / ours": True,
        "E: real-time mean / RT-only": True,
        "E: real-time p99 / RT-only": True,
        "E: throughput / RT-only": False,
    }


def test_preemption_must_be_short_and_independent_of_the_layers() -> None:
    def row(figure: str, p50_us: float, p99_us: float) -> dict[str, Any]:
        times = {"preemption_p50_us": p50_us, "preemption_p99_us": p99_us}
        times["in_worker_p99_us"] = p99_us / 2
        return {"figure": figure, "policy": "padded", **times}

    report = _report([row("12", 90, 150), row("13", 90, 150), row("13", 200, 900)])
    preemption.add_checks(report)
    assert [check.ok for check in report.checks] == [True, True, False, False, False]


def test_the_overlap_of_two_runs() -> None:
    background = Timed(0, 100, 1000, 0, 800, b"")
    overlap = preemption._overlap_ns
    assert overlap(Timed(0, 200, 0, 0, 300, b""), background) == 300
    assert overlap(Timed(0, 850, 0, 0, 300, b""), background) == 50
    assert overlap(Timed(0, 950, 0, 0, 300, b""), background) == 0


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_has_the_paper_s_number_of_layers(name: str, tmp_path: Path) -> None:
    network = NETWORKS[name]
    file = tmp_path / "model.onnx"
    onnx.save(network.build(), file)
    assert len(read_program(file).layers) == pytest.approx(network.layers, rel=0.05)


def test_a_chain_of_longer_layers_has_wider_and_fewer_ones() -> None:
    short, long = chain_of(1.0, 5.0), chain_of(40.0, 5.0)
    products = [
        sum(node.op_type == "MatMul" for node in model.graph.node) for model in (short, long)
    ]
    assert products == [60, 2]
    assert short.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 368
    assert long.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 2 * PROBE_WIDTH


def test_figures_are_drawn_for_the_rows_that_are_there(tmp_path: Path) -> None:
    found = {"policy": "padded", "preemption_p50_us": 90.0, "preemption_p99_us": 200.0}
    layers = [{"figure": "13", "layer_ms": length, **found} for length in (1.0, 300.0)]
    pair = {"figure": "16", "policy": "shared", "realtime": "vgg", "best_effort": "vgg"}
    pairs = [{**pair, "slowdown": 1.5, "best_effort_share": 0.4}]
    workloads = [
        _row("C", side, mean_ms=9.0, p99_ms=30.0, per_s=40.0) for side in ("triton", "new")
    ]
    files = plot_figures(_report([*layers, *pairs, *workloads]), tmp_path)
    names = ["preempt-11-workloads.png", "preempt-13-layers.png", "preempt-16-pairs.png"]
    assert [file.name for file in files] == names
    assert all(file.stat().st_size > 10_000 for file in files)
