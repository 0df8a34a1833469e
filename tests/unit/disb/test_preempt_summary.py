"""Ratios and checks of `brisk bench preempt`, from given samples and rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from brisk_bench.disb import pairs, preemption
from brisk_bench.disb.networks import NETWORKS, PROBE_WIDTH, chain_of
from brisk_bench.disb.wire import Timed
from brisk_bench.harness.report import Report
from brisk_bench.preempt import plot_figures


def _report(rows: list[dict[str, Any]]) -> Report:
    return Report("preempt", {}, {}, rows, [])


def test_preemption_must_be_short_and_independent_of_the_layers() -> None:
    def rows(figure: str, p50_us: float, p99_us: float | str, ms: float = 1) -> list[Any]:
        return [
            {
                "figure": figure,
                "policy": "preemptive",
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
        ("from execute to the first segment, p99 over all networks, us", True),
        ("in worker to the first segment, p99 over all networks, us", True),
        ("from execute to the first segment, p99 over all segment lengths, us", False),
        ("in worker to the first segment, p99 over all segment lengths, us", True),
        ("from client to the first segment, p50, segments of 300 ms / of 1 ms", False),
        ("from execute to the first segment, p50, segments of 300 ms / of 1 ms", False),
    ]
    report = _report([*rows("12", 90, 150), *rows("12", 90, "too few answers (9 of 1,000)")])
    preemption.add_checks(report)
    assert [check.ok for check in report.checks] == [False, True]
    assert report.checks[0].value == "too few answers (9 of 1,000)"


def test_pairs_are_counted_that_keep_the_limit_and_their_mean_is_judged() -> None:
    rows = [
        {"figure": "16", "policy": policy, "slowdown": slowdown}
        for policy, slowdowns in {"preemptive": (1.0, 1.02, 1.21), "shared": (9.0,)}.items()
        for slowdown in slowdowns
    ]
    report = _report(rows)
    pairs.add_checks(report)
    assert [(check.name, check.value, check.expected, check.ok) for check in report.checks] == [
        ("pairs with a real-time mean / alone of at most 1.02, of 3", 2, ">= 3", False),
        (
            "real-time mean / alone, geometric mean of 3 pairs",
            round((1.02 * 1.21) ** (1 / 3), 3),
            "<= 1.02",
            False,
        ),
    ]
    other = _report(rows[3:])
    pairs.add_checks(other)
    assert other.checks == [], "other policies have no aim"


def test_the_overlap_of_two_runs() -> None:
    background = Timed(0, 100, 1000, 800, b"")
    overlap = preemption.overlap_ns
    assert overlap(Timed(0, 200, 0, 300, b""), background) == 300
    assert overlap(Timed(0, 850, 0, 300, b""), background) == 50
    assert overlap(Timed(0, 950, 0, 300, b""), background) == 0


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_has_the_paper_s_number_of_layers(name: str) -> None:
    network = NETWORKS[name]
    counts = Counter(node.op_type for node in network.build().graph.node)
    behind_others = counts["Add"] + counts["Relu"] - counts["BatchNormalization"] + counts["Mul"]
    movements = counts["Reshape"] + counts["Transpose"] + counts["Identity"]
    heads = 6 * counts["Softmax"]  # an attention is one layer with what it is made of and from
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
        "policy": "preemptive",
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
    workloads: list[dict[str, Any]] = [
        {"workload": "C", "side": side, "mean_ms": 9.0, "p99_ms": p99_ms}
        for side, p99_ms in (("triton one run", 30.0), ("new", few))
    ]
    single = {"workload": "D", "side": "preemptive", "stage": "round", "p99_ms": 9.0}
    workloads += [single, {"workload": "E", "reason": "no figure, machine not quiet"}]
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
    rows = [{"workload": "C", "side": side, "p99_ms": few} for side in ("preemptive", "shared")]
    assert plot_figures(_report(rows), tmp_path) == []
