"""`brisk bench exits_served`: a model with its learned caches through a real Triton.

One server has the model twice, with its caches and without. One client sends the same inputs to
both in turns, over gRPC: latency as the client sees it, agreement of the classes, and the share of
rows that the runtime says its exits have answered. The model that opts out of early exits
(`brisk_early_exit: false`) is a third side: it tells what stopping at the exits costs.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from brisk.errors import InvalidConfigurationError, InvalidModelError
from brisk.exits.cascade_file import write_cascade
from brisk.exits.exploration import ExplorationSettings
from brisk.exits.files.versions import caches_file
from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.telemetry.observer import Observer
from brisk_bench.exits.data import ACCURACY, digits_case
from brisk_bench.harness.command_line import benchmark_parser, deliver
from brisk_bench.harness.machine import new_report
from brisk_bench.harness.report import Check, Report, check_limit, check_tail_ratio, plot_bars
from brisk_bench.harness.served_server import benchmark_server
from brisk_bench.harness.tails import tail_or_shortage
from brisk_client.inference import InferenceClient, Parameters, Transport

BATCHES = (1, 2, 8)
WARM_UP = 20
PASSES = 3
"""Passes over the inputs. So few digits are left for them that a p99 takes three."""

TAIL = 1.02

WHOLE: Parameters = {"brisk_early_exit": "false"}
SIDES: dict[str, tuple[str, Parameters | None]] = {
    "without caches": ("bare", None),
    "with caches": ("cached", None),
    "opted out": ("cached", WHOLE),
}
"""The sides by name: the entry that is asked, and the parameters of the requests."""


@dataclass(slots=True)
class ServedSide:
    """Latencies of requests, and rows whose class is that of the model without caches."""

    times_s: list[float] = field(default_factory=list)
    agreeing: int = 0
    rows: int = 0


def run(quick: bool = False) -> Report:
    """Measure the ResNet-50 on digits of `brisk bench exits`, with caches trained now.

    Raises InvalidModelError if it gets none.
    """
    case = digits_case(quick)
    settings = ExplorationSettings(
        accuracy=ACCURACY, points=4 if quick else 6, variants=case.variants
    )
    exploration = case.explore(settings)
    if exploration.cascade is None:
        raise InvalidModelError(f"the network of the digits got no caches: {exploration.reason}")
    samples = case.evaluation.inputs
    notes = ["latency of a request as its client sees it; speed up: of the mean over batches"]
    report = new_report("exits_served", ("torch", "numpy", "tritonclient"), notes)
    with tempfile.TemporaryDirectory(prefix="brisk-bench-") as folder:
        repository = Path(folder)
        for name in ("bare", "cached"):
            file = repository / name / "1" / "model.onnx"
            file.parent.mkdir(parents=True)
            shutil.copy(case.model, file)
            text = f'backend: "brisk" max_batch_size: {max(BATCHES)}\n'
            (repository / name / "config.pbtxt").write_text(text)
        write_cascade(caches_file(file), exploration.cascade)
        environment = {"BRISK_ARTEFACTS": "off", "BRISK_SAMPLED_SHARE": "0"}
        with (
            benchmark_server(repository, environment) as server,
            InferenceClient(server.grpc, Transport.GRPC) as client,
        ):
            _await_caches(server.place, client, samples)
            for batch in BATCHES:
                offered, answered = _told(server.place)
                sides = _measure(client, samples, batch, quick)
                now_offered, now_answered = _told(server.place)
                early = (now_answered - answered) / (now_offered - offered)
                report.rows += rows_of(sides, batch, early)
                if batch == 1:
                    report.checks += checks_of(sides, exploration.cascade.levels[0].accuracy)
    return report


def main(arguments: Sequence[str]) -> int:
    """Run the command line; the exit status is 0 if every check holds."""
    chosen = benchmark_parser("exits_served", __doc__, "fewer inputs").parse_args(arguments)
    report = run(chosen.quick)
    return deliver(
        report, chosen, lambda folder: plot_bars(report, folder, "mean_ms", "batch", "side")
    )


def _told(place: RuntimePaths) -> tuple[int, int]:
    """Return the rows that could have been answered early so far, and those that were."""
    with Observer(place, Role.FOREGROUND) as observer:
        models = observer.status().models
    answered = sum(exit_.answered for model in models for exit_ in model.exits)
    return sum(model.offered_rows for model in models), answered


def _await_caches(
    place: RuntimePaths, client: InferenceClient, samples: Mapping[str, np.ndarray]
) -> None:
    """Ask both entries until the runtime has read the caches.

    Raises InvalidConfigurationError if it does not within two minutes.
    """
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s:
        for model in ("bare", "cached"):
            client.infer(model, {name: array[:1] for name, array in samples.items()})
        with Observer(place, Role.FOREGROUND) as observer:
            if any(model.exits for model in observer.status().models):
                return
    raise InvalidConfigurationError("the runtime did not read the caches; see its log")


def _measure(
    client: InferenceClient, samples: Mapping[str, np.ndarray], batch: int, quick: bool
) -> dict[str, ServedSide]:
    """Send the same inputs to all sides, the order changing with each input."""
    rows = len(next(iter(samples.values())))
    starts = list(range(0, rows - batch + 1, batch))
    starts = starts[:150] if quick else starts * PASSES
    sides = {name: ServedSide() for name in SIDES}
    names = list(SIDES)
    for turn, start in enumerate([*starts[:WARM_UP], *starts]):
        inputs = {name: array[start : start + batch] for name, array in samples.items()}
        classes: dict[str, np.ndarray] = {}
        taken_s: dict[str, float] = {}
        first = turn % len(names)
        for name in (*names[first:], *names[:first]):
            model, parameters = SIDES[name]
            started_s = time.perf_counter()
            answer = client.infer(model, inputs, parameters=parameters)
            taken_s[name] = time.perf_counter() - started_s
            classes[name] = next(iter(answer.values())).argmax(1)
        if turn >= WARM_UP:
            for name, side in sides.items():
                side.times_s.append(taken_s[name])
                side.rows += batch
                side.agreeing += int((classes[name] == classes["without caches"]).sum())
    return sides


def rows_of(sides: dict[str, ServedSide], batch: int, early: float) -> list[dict[str, Any]]:
    base = statistics.fmean(sides["without caches"].times_s)
    return [
        {
            "side": name,
            "batch": batch,
            "mean_ms": statistics.fmean(side.times_s) * 1e3,
            "median_ms": statistics.median(side.times_s) * 1e3,
            "p99_ms": tail_or_shortage(side.times_s, 0.99, 1e3),
            "speed_up": base / statistics.fmean(side.times_s),
            "agreement": side.agreeing / side.rows,
            "early": early if name == "with caches" else 0.0,
            "requests": len(side.times_s),
        }
        for name, side in sides.items()
    ]


def checks_of(sides: dict[str, ServedSide], promise: float) -> list[Check]:
    """Return the checks of the sides at batch 1."""
    base, side, out = (sides[name] for name in ("without caches", "with caches", "opted out"))
    speed_up = statistics.fmean(base.times_s) / statistics.fmean(side.times_s)
    agreement, opted = side.agreeing / side.rows, out.agreeing / out.rows
    return [
        check_limit("agreement with the model", agreement, ">=", promise),
        check_limit("mean speed-up", speed_up, ">", 1),
        check_tail_ratio("p99 over the bare model's", side.times_s, base.times_s, 0.99, TAIL),
        check_limit("opted out: agreement", opted, "==", 1),
    ]
