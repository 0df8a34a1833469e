"""`brisk bench pipeline`: planning of a query over several networks, planner against planner.

Traffic in small, after GATI's (section 7.3), with networks that are trained for it: a reader of a
plate's number, which takes the most of the time and has learned caches as `brisk caches train`
makes them; what kind each of four crops is, two classifiers behind it, a join. Each request is
served by every planner in turn, in this process, by the code that serves pipelines.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

from brisk_bench.harness.command_line import bars, benchmark_parser, run_command
from brisk_bench.harness.machine import new_report
from brisk_bench.harness.report import Check, Report, check_limit
from brisk_bench.harness.sampling import in_rounds, summarise
from brisk_bench.pipeline.networks import TrainedNetworks, trained_networks
from brisk_bench.pipeline.planners import PLANNERS, WARM_UP, PlannerBench, Served, load_bench
from brisk_bench.pipeline.scenes import ScenePart, make_scenes

CROPS = 4
"""Pictures in a request in addition to the plate: a frame's detected objects."""

TIGHTNESS = (0.6, 0.75, 0.9, 1.05)
"""Objectives, as shares of the time of the slowest networks together. Below 1, a proportional
split gives no node its slowest network."""

POLICIES = ("equal", "proportional", "exact")

BASE, OURS = "static, no early answers", "incremental"

NOTES = (
    "static, no early answers: GATI's baseline; static: learned caches, plan kept; incremental: "
    "learned caches, planned anew at every node; oracle: knows beforehand what the reader will "
    "take, and plans all of the query exactly",
    "accuracy: share of right labels, of plates and crops; latency: mean from start to answer, "
    "one thread; missed: share of requests over the objective",
    "gains are over the static planner without early answers: its latency over this one's; "
    "accuracy in points",
)


def run(quick: bool = False) -> Report:
    """Measure every policy, objective and planner; train the networks unless they are there."""
    networks = trained_networks()
    notes = [*NOTES, f"accuracies on validation scenes: {json.dumps(networks.accuracies)}"]
    report = new_report("pipeline", ("torch", "onnx", "numpy", "scikit-learn"), notes)
    count = 80 if quick else len(networks.plates) - WARM_UP
    frames, labels = requests_of(networks, count + WARM_UP)
    labels = labels[:count]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="brisk-pipeline-"))
        stack.enter_context(torch.inference_mode())
        torch.set_num_threads(1)
        bench = load_bench(networks, Path(folder), frames[:count], frames[count:])
        shares = ", ".join(f"{size} {share:.0%}" for size, share in bench.spared.items())
        report.notes += [
            f"caches of the large reader: {networks.caches}",
            f"all slowest: {bench.slowest_ns / 1e6:.2f} ms; plates answered early: {shares}",
        ]
        for policy in POLICIES:
            for tightness in TIGHTNESS:
                objective_ns = int(bench.slowest_ns * tightness)
                report.rows += _measure(bench, policy, objective_ns, labels)
    check_settings(report, networks)
    return report


def requests_of(
    networks: TrainedNetworks, count: int
) -> tuple[list[dict[str, np.ndarray]], np.ndarray]:
    """Return requests, a plate and four crops each, and labels [count, 5], the plate's first."""
    scenes = make_scenes(count * CROPS, seed=3, part=ScenePart.MEASURED)
    crops = scenes.images.reshape(count, CROPS, *scenes.images.shape[1:])
    (plates,), numbers = networks.plates.inputs.values(), networks.plates.labels
    assert numbers is not None
    frames = [{"plate": plates[row : row + 1], "image": crops[row]} for row in range(count)]
    labels = np.column_stack([numbers[:count], scenes.labels.reshape(count, CROPS)])
    return frames, labels


def main(arguments: Sequence[str]) -> int:
    parser = benchmark_parser("pipeline", __doc__, "fewer requests")
    return run_command(parser, arguments, run, bars("mean_ms", "policy", "planner"))


def _measure(
    bench: PlannerBench, policy: str, objective_ns: int, labels: np.ndarray
) -> list[dict[str, Any]]:
    """Return one row for each planner; every request is served by all of them, interleaved."""
    frames = {planner: iter(range(len(labels))) for planner in PLANNERS}

    def serve(planner: str) -> Served:
        return bench.serve(planner, policy, objective_ns, next(frames[planner]))

    served, _ = in_rounds(PLANNERS, len(labels), serve)
    rows = [_row(policy, objective_ns, planner, served[planner], labels) for planner in PLANNERS]
    base = rows[PLANNERS.index(BASE)]
    for row in rows:
        row["accuracy_gain_points"] = round(100 * (row["accuracy"] - base["accuracy"]), 2)
        row["latency_gain"] = round(base["mean_ms"] / row["mean_ms"], 3)
    return rows


def _row(
    policy: str, objective_ns: int, planner: str, answers: Sequence[Served], labels: np.ndarray
) -> dict[str, Any]:
    latencies_ms = [each.latency_ns / 1e6 for each in answers]
    summary = summarise(latencies_ms)
    missed = [each.latency_ns > objective_ns for each in answers]
    counts = Counter(what for each in answers for what in each.taken)
    return {
        "policy": policy,
        "objective_ms": round(objective_ns / 1e6, 3),
        "planner": planner,
        "accuracy": round(float(np.mean([each.labels for each in answers] == labels)), 4),
        "mean_ms": round(float(np.mean(latencies_ms)), 3),
        "median_ms": round(summary.median, 3),
        "spread_ms": round(summary.spread, 3),
        "missed": round(float(np.mean(missed)), 3),
        "taken": ", ".join(f"{what} {count}" for what, count in sorted(counts.items())),
    }


def check_settings(report: Report, networks: TrainedNetworks) -> None:
    """Check GATI's claim (7.3), on the median of all settings, and that larger networks are at
    least as accurate."""
    ours = [row for row in report.rows if row["planner"] == OURS]
    both = [r for r in ours if r["accuracy_gain_points"] > 0 and r["latency_gain"] > 1]
    text = "settings where incremental replanning is more accurate and faster at once"
    is_most = 2 * len(both) > len(ours)
    report.checks.append(Check(text, f"{len(both)} of {len(ours)}", "more than half", is_most))
    for key, unit, least in (
        ("accuracy_gain_points", "points", 1),
        ("latency_gain", "times", 1.26),
    ):
        median = float(np.median([row[key] for row in ours]))
        gain = f"{key.split('_')[0]} gain of incremental, {unit}"
        text = f"{gain}, median of all {len(ours)} settings"
        report.checks.append(check_limit(text, median, ">=", least))
    static = {(r["policy"], r["objective_ms"]): r for r in report.rows if r["planner"] == "static"}
    gains = [r["accuracy"] - static[r["policy"], r["objective_ms"]]["accuracy"] for r in ours]
    mean = 100 * float(np.mean(gains))
    text = "accuracy of incremental over static, both with early answers, mean of points"
    report.checks.append(check_limit(text, mean, ">", 0, 2))
    for task, found_of in networks.accuracies.items():
        grows = list(found_of.values()) == sorted(found_of.values())
        shown = " ".join(f"{size} {value:.3f}" for size, value in found_of.items())
        text = f"'{task}': larger is as accurate or more"
        report.checks.append(Check(text, shown, "not falling", grows))
