"""`brisk bench warm`: time of one inference on a loaded, warm model, engine against engine.

In this process's children, one for each engine, measured in turns (A B C A B C …) so that what
slows the machine down slows all alike. Brisk and ONNX Runtime are compared round by round.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from brisk_client.benchmarks import served
from brisk_client.benchmarks.engines.agreement import agree, difference
from brisk_client.benchmarks.engines.model_inputs import (
    HINT,
    NOTHING_GIVEN,
    GivenInputs,
    add_input_option,
    add_models_option,
    check_files,
    labelled,
    make_inputs,
    models_in,
    read_given_of,
    were_given,
)
from brisk_client.benchmarks.engines.process import EngineUnavailableError, WarmEngine
from brisk_client.benchmarks.engines.registry import ENGINES
from brisk_client.benchmarks.harness.command_line import (
    UnusableArgumentError,
    benchmark_parser,
    deliver,
    measured,
)
from brisk_client.benchmarks.harness.machine import new_report
from brisk_client.benchmarks.harness.sampling import Burst, burst_rounds, burst_row, median_ratio
from brisk_client.report import Check, Report, plot_bars

SAMPLES = Path(__file__).resolve().parents[3] / "model_repository"

LIMIT, MEAN_LIMIT = 1.05, 1.0
"""Brisk's time over ONNX Runtime's on each model, and in the mean of several."""

SPARE_US = 20.0
"""More than ONNX Runtime's time that counts as well: a frame, in a small network's time."""

BASE = "onnxruntime"

TORCH = "torch eager"
"""The engine that has only some networks, with weights of its own."""

IN_PROCESS = "in process"
"""The key ``path`` of a row says what lies between the caller and the engine."""

NOTES = (
    "one process for each engine; only one computes at a time",
    "onnxruntime: session.intra_op.allow_spinning=0; 'onnxruntime spinning': its default",
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
    models: Sequence[Path] | None = None,
    threads: int = 1,
    sizes: Mapping[str, int] | None = None,
    through_triton: bool = True,
    given: GivenInputs = NOTHING_GIVEN,
) -> Report:
    """Measure ``models``, the sample entries where None, with ``threads`` threads each.

    ``through_triton``: the samples also through a server (``served``), where ``models`` is None.
    ``sizes``: symbolic dimensions by name; ``given``: inputs (see ``make_inputs``). Raises
    FileNotFoundError where there are no models.
    """
    files = list(models) if models else sorted(SAMPLES.glob("*/*/model.onnx"))
    if not files:
        raise FileNotFoundError(f"no models in {SAMPLES}; model_repository/generate.py makes them")
    versions = ("torch", "onnxruntime", "openvino", "onnx", "numpy")
    report = new_report("warm", versions, NOTES, threads=threads)
    bench = _WarmBench(report, threads, sizes or {}, given, (4, 0.3) if quick else (10, 1.0))
    for name, file in labelled(files).items():
        bench.measure(name, file)
    _add_means(report)
    if through_triton and not models:
        report.notes += served.NOTES
        served.measure(report, quick, threads)
    return report


def main(arguments: Sequence[str]) -> int:
    """The command line; the exit status is 0 where every check holds."""
    parser = benchmark_parser("warm", __doc__, "few and short rounds")
    parser.add_argument("files", nargs="*", type=Path, help="ONNX files; none: the samples")
    parser.add_argument("--model", action="append", default=[], type=Path, metavar="FILE")
    add_models_option(parser)
    add_input_option(parser)
    parser.add_argument("--threads", type=int, default=1, help="threads of every engine")
    parser.add_argument(
        "--size", action="append", default=[], metavar="NAME=N", help="a symbolic dimension"
    )
    parser.add_argument(
        "--served",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="the samples also through a real Triton",
    )
    chosen = parser.parse_args(arguments)

    def run_chosen() -> Report:
        files = [*chosen.files, *chosen.model, *models_in(chosen.models)]
        check_files(files)
        given = read_given_of(chosen.input, len(files))
        sizes = _sizes(chosen.size)
        return run(chosen.quick, files or None, chosen.threads, sizes, chosen.served, given)

    report = measured(parser, run_chosen)
    return deliver(
        report,
        chosen,
        lambda folder: plot_bars(report, folder, "median_ms", "model", "engine", "spread_ms"),
    )


def _sizes(texts: Sequence[str]) -> dict[str, int]:
    """Raises UnusableArgumentError for what is not NAME=N."""
    found = {}
    for text in texts:
        name, _, size = text.partition("=")
        if not (name and size.isdigit() and int(size)):
            raise UnusableArgumentError(f"--size {text}: expected NAME=N with a positive number")
        found[name] = int(size)
    return found


class _WarmBench:
    """Measures one model after the other and adds its rows and checks.

    ``effort``: rounds, seconds of each.
    """

    def __init__(
        self,
        report: Report,
        threads: int,
        sizes: Mapping[str, int],
        given: GivenInputs,
        effort: tuple[int, float],
    ) -> None:
        self._report = report
        self._threads = threads
        self._sizes = sizes
        self._given = given
        self._rounds, self._duration_s = effort

    def measure(self, name: str, file: Path) -> None:
        try:
            inputs = make_inputs(file, self._sizes, self._given)
        except UnusableArgumentError as error:
            self._report.rows.append({"model": name, "engine": "none", "reason": str(error)})
            self._report.checks.append(Check(f"{name}: is measured", str(error), "yes", False))
            return
        reasons: dict[str, str] = {}
        with tempfile.TemporaryDirectory(prefix="brisk-warm-") as folder:
            np.savez(Path(folder) / "inputs.npz", **inputs)
            bursts, outputs = self._measure_engines(file, Path(folder), reasons)
        self._add([_row(name, engine, bursts, outputs) for engine in bursts])
        hint = "" if were_given(file, self._given) else f" ({HINT})"
        for engine, reason in reasons.items():
            if engine == TORCH and reason.startswith("LookupError"):
                continue  # nobody has written it in torch
            self._report.rows.append({"model": name, "engine": engine, "reason": reason + hint})
        if "brisk" in reasons:
            text = f"{name}: brisk answers{', as onnxruntime does' if BASE in bursts else ''}"
            self._report.checks.append(Check(text, reasons["brisk"], "an answer", False))

    def _measure_engines(
        self, file: Path, folder: Path, reasons: dict[str, str]
    ) -> tuple[dict[str, list[Burst]], dict[str, list[np.ndarray]]]:
        """Bursts and outputs by engine; those that cannot go to ``reasons``."""
        processes: dict[str, WarmEngine] = {}
        bursts: dict[str, list[Burst]] = {}
        with ExitStack() as stack:
            for engine in ENGINES:
                if self._threads == 1 and engine == "onnxruntime spinning":
                    continue  # one thread has nobody to wait for
                try:
                    processes[engine] = WarmEngine(engine, file, self._threads, folder)
                except EngineUnavailableError as error:
                    reasons[engine] = str(error)
                    continue
                stack.callback(processes[engine].close)
                bursts[engine] = []
            for _ in range(self._rounds):
                for engine, process in list(processes.items()):
                    try:
                        bursts[engine].append(process.measure(self._duration_s))
                    except EngineUnavailableError as error:
                        reasons[engine] = str(error)
                        del processes[engine], bursts[engine]
            return bursts, {name: process.outputs() for name, process in processes.items()}

    def _add(self, rows: Sequence[dict[str, Any]]) -> None:
        """One model's rows, and what is expected of Brisk's."""
        self._report.rows += rows
        checks = self._report.checks
        for row in rows:
            if row["engine"] != "brisk" or "ratio_to_onnxruntime" not in row:
                continue
            name, ratio, more_us = row["model"], row["ratio_to_onnxruntime"], row["more_us"]
            if ratio > LIMIT and more_us <= SPARE_US:
                text = f"{name}: brisk - onnxruntime, us, {self._threads} thread(s)"
                limit = f"<= {SPARE_US:g} (or {LIMIT} times)"
                checks.append(Check(text, more_us, limit, True))
            else:
                text = f"{name}: brisk / onnxruntime, {self._threads} thread(s)"
                checks.append(Check(text, ratio, f"<= {LIMIT}", ratio <= LIMIT))
            if "agrees" in row:
                text, close = f"{name}: outputs agree with onnxruntime's", row["agrees"]
                checks.append(Check(text, close, "rtol 1e-3, atol 1e-4", close))


def _add_means(report: Report) -> None:
    """Geometric means over all models of each engine's time over ONNX Runtime's, where there are
    several; Brisk's is a check."""
    ratios: dict[str, list[float]] = {}
    for row in report.rows:
        if "ratio_to_onnxruntime" in row:
            ratios.setdefault(row["engine"], []).append(row["ratio_to_onnxruntime"])
    for engine, found in ratios.items():
        if len(found) < 2:
            continue
        mean, name = round(statistics.geometric_mean(found), 3), f"mean of {len(found)} models"
        report.rows.append({"model": name, "engine": engine, "ratio_to_onnxruntime": mean})
        if engine == "brisk":
            text = f"geometric {name}: brisk / onnxruntime"
            report.checks.append(Check(text, mean, f"<= {MEAN_LIMIT}", mean <= MEAN_LIMIT))


def _row(
    name: str,
    engine: str,
    bursts: Mapping[str, Sequence[Burst]],
    outputs: Mapping[str, list[np.ndarray]],
) -> dict[str, Any]:
    """With what ONNX Runtime is left out of where it could not be measured."""
    row = {"model": name, "engine": engine, "path": IN_PROCESS, **burst_row(bursts[engine])}
    bases = [bursts[base] for base in (BASE, f"{BASE} spinning") if base in bursts]
    if bases:
        rounds = burst_rounds(bursts[engine], *bases)
        more_s = statistics.median(ours - theirs for ours, theirs in rounds)
        row["ratio_to_onnxruntime"] = round(median_ratio(rounds), 3)
        row["more_us"] = round(more_s * 1e6, 1)
    if BASE in outputs and engine != TORCH:
        row["max_difference"] = difference(outputs[engine], outputs[BASE])
        row["agrees"] = agree(outputs[engine], outputs[BASE])
    return row
