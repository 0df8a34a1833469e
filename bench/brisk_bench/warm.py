"""`brisk bench warm`: time of one inference on a loaded, warm model, engine against engine.

In this process's children, one for each engine, measured in turns (A B C A B C …) so that what
slows the machine down slows all alike. Brisk and ONNX Runtime are compared round by round. Then
the same models through a real Triton (``brisk_bench.served``).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from brisk_bench import served
from brisk_bench.engines.agreement import agree, difference
from brisk_bench.engines.model_inputs import (
    HINT,
    add_input_option,
    add_models_option,
    given_models,
    labelled,
    make_inputs,
    were_given,
)
from brisk_bench.engines.process import EngineUnavailableError
from brisk_bench.engines.registry import BASE, BRISK, SPINNING, TORCH, WARM
from brisk_bench.engines.warm import WarmEngine
from brisk_bench.harness.command_line import (
    UnusableArgumentError,
    bars,
    benchmark_parser,
    run_command,
)
from brisk_bench.harness.machine import new_report
from brisk_bench.harness.peer_backends import add_peers_option, onnxruntime_backend
from brisk_bench.harness.report import REASON, Check, Report, check_limit
from brisk_bench.harness.sampling import Burst, Pace, burst_row, in_rounds, pace_over
from brisk_bench.harness.served_entries import SAMPLES

MEAN_LIMIT = 1.0
"""The most of Brisk's time over ONNX Runtime's, geometric mean of several models."""

IN_PROCESS = "in process"
"""The value of the key ``path``, which says what lies between the caller and the engine."""

NOTES = (
    "one process for each engine; only one computes at a time",
    "onnxruntime: session.intra_op.allow_spinning=0; 'onnxruntime spinning': its default",
    "threads: unless given all usable cores, which is what Brisk and its users get by default",
    "times are of one inference with numpy arrays in and out; spread: interquartile range",
    "ratio to onnxruntime: median over rounds of the medians' quotient, the faster of its two "
    "settings in that round",
    "brisk: segments that ONNX Runtime computes",
    "torch eager: the same network written in torch, where it is, with weights of its own",
    "max difference: greatest absolute difference of any output from onnxruntime's",
    "reason: why an engine could not be measured",
)


def run(
    quick: bool = False,
    files: Sequence[Path] = (),
    models: Sequence[Path] = (),
    inputs: Sequence[str] = (),
    threads: int = 0,
    through_triton: bool = True,
    peers: Path | None = None,
) -> Report:
    """Measure ``files`` and those in the folders ``models``, or the samples if there are none.

    ``threads``: 0: all usable cores. ``through_triton``: also through a server (``served``),
    compared with Triton's own backend if ``peers`` has it. Raises FileNotFoundError if there are
    no samples, UnusableArgumentError before anything is measured.
    """
    threads = threads or len(os.sched_getaffinity(0))
    peer = onnxruntime_backend(peers) if peers is not None else None
    files, given_inputs = given_models(files, models, inputs)
    samples = sorted(SAMPLES.glob("*/*/model.onnx"))
    if not files and not samples:
        raise FileNotFoundError(f"no models in {SAMPLES}; model_repository/generate.py makes them")
    versions = ("torch", "onnxruntime", "openvino", "onnx", "numpy")
    report = new_report("warm", versions, NOTES, threads=threads)
    effort = (4, 0.3) if quick else (10, 1.0)
    by_label = labelled(files or samples)
    for name, file in by_label.items():
        try:
            arrays = make_inputs(file, given_inputs)
        except UnusableArgumentError as error:
            report.rows.append({"model": name, "engine": "none", REASON: str(error)})
            report.checks.append(Check(f"{name}: is measured", str(error), "yes", False))
            continue
        hint = "" if were_given(file, given_inputs) else f" ({HINT})"
        _measure(report, name, file, arrays, threads, effort, hint)
    _add_means(report)
    if through_triton:
        report.notes += served.NOTES
        if not files:
            by_label = {label: file for label, file in by_label.items() if label in served.LABELS}
        served.measure(report, quick, threads, by_label, peer, given_inputs)
    return report


def main(arguments: Sequence[str]) -> int:
    parser = benchmark_parser("warm", __doc__, "few and short rounds")
    parser.add_argument(
        "files", nargs="*", type=Path, action="extend", help="ONNX files; none: the samples"
    )
    parser.add_argument(
        "--model", dest="files", action="append", default=[], type=Path, metavar="FILE"
    )
    add_models_option(parser)
    add_input_option(parser)
    parser.add_argument("--threads", type=int, default=0, help="of every engine (default: cores)")
    add_peers_option(parser)
    parser.add_argument(
        "--served",
        dest="through_triton",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="the models also through a real Triton",
    )
    plot = bars("median_ms", "model", "engine", "spread_ms")
    return run_command(parser, arguments, run, plot)


def _measure(
    report: Report,
    name: str,
    file: Path,
    inputs: Mapping[str, np.ndarray],
    threads: int,
    effort: tuple[int, float],
    hint: str,
) -> None:
    """Add one model's rows and checks. ``effort``: rounds, seconds of each. ``hint``: appended to
    the reason why an engine cannot be measured."""
    rounds, duration_s = effort
    reasons: dict[str, str] = {}
    processes: dict[str, WarmEngine] = {}
    with (
        tempfile.TemporaryDirectory(prefix="brisk-warm-") as folder,
        contextlib.ExitStack() as stack,
    ):
        np.savez(Path(folder) / "inputs.npz", **inputs)
        for engine in WARM:
            if threads == 1 and engine == SPINNING:
                continue  # one thread never waits for others
            try:
                process = WarmEngine(engine, file, threads, Path(folder))
                processes[engine] = stack.enter_context(process)
            except EngineUnavailableError as error:
                reasons[engine] = str(error)
        bursts, failed = in_rounds(
            processes,
            rounds,
            lambda engine: processes[engine].measure(duration_s),
            failures=(EngineUnavailableError,),
        )
        outputs = {engine: processes[engine].outputs() for engine in bursts}
    for engine in bursts:
        row = _row(name, engine, bursts, outputs)
        report.rows.append(row)
        if engine == BRISK and "ratio_to_onnxruntime" in row:
            report.checks += checks_of(row, threads)
    for engine, reason in {**reasons, **failed}.items():
        if engine == TORCH and reason.startswith("LookupError"):
            continue  # the network has no torch form
        report.rows.append({"model": name, "engine": engine, REASON: reason + hint})
        if engine == BRISK:
            text = f"{name}: brisk answers{', as onnxruntime does' if BASE in bursts else ''}"
            report.checks.append(Check(text, reason, "an answer", False))


def _row(
    name: str,
    engine: str,
    bursts: Mapping[str, Sequence[Burst]],
    outputs: Mapping[str, list[np.ndarray]],
) -> dict[str, Any]:
    """Return an engine's row, without ratios to ONNX Runtime if that could not be measured."""
    row = {"model": name, "engine": engine, "path": IN_PROCESS, **burst_row(bursts[engine])}
    bases = [bursts[base] for base in (BASE, SPINNING) if base in bursts]
    if bases:
        pace = pace_over(bursts[engine], *bases)
        row["onnxruntime_ms"] = pace.theirs_ms
        row["ratio_to_onnxruntime"] = pace.ratio
        row["more_us"] = pace.more_us
    if BASE in outputs and engine != TORCH:
        row["max_difference"] = difference(outputs[engine], outputs[BASE])
        row["agrees"] = agree(outputs[engine], outputs[BASE])
    return row


def checks_of(row: Mapping[str, Any], threads: int) -> list[Check]:
    """Return the checks of Brisk's row of a model."""
    name = row["model"]
    pace = Pace(row["onnxruntime_ms"], row["ratio_to_onnxruntime"], row["more_us"])
    checks = [served.pace_check(f"{name}: brisk", f"onnxruntime, {threads} thread(s)", pace)]
    if "agrees" in row:
        text, close = f"{name}: outputs agree with onnxruntime's", row["agrees"]
        checks.append(Check(text, close, served.CLOSE, close))
    return checks


def _add_means(report: Report) -> None:
    """Add geometric means over several models of engines' times over ONNX Runtime's.

    Brisk's is a check.
    """
    ratios: dict[str, list[float]] = {}
    for row in report.rows:
        if "ratio_to_onnxruntime" in row:
            ratios.setdefault(row["engine"], []).append(row["ratio_to_onnxruntime"])
    for engine, values in ratios.items():
        if len(values) < 2:
            continue
        mean, name = statistics.geometric_mean(values), f"mean of {len(values)} models"
        report.rows.append({"model": name, "engine": engine, "ratio_to_onnxruntime": mean})
        if engine == BRISK:
            text = f"geometric {name}: brisk / onnxruntime"
            report.checks.append(check_limit(text, mean, "<=", MEAN_LIMIT, 3))
