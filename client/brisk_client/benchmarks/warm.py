"""`brisk bench warm`: time of one inference on a loaded, warm model, engine against engine.

In this process's children, one for each engine, measured in turns (A B C A B C …) so that what
slows the machine down slows all alike. Brisk and ONNX Runtime are compared round by round.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from brisk_client.benchmarks import served
from brisk_client.benchmarks.command_line import benchmark_parser, deliver
from brisk_client.benchmarks.engine_process import (
    Burst,
    EngineProcess,
    EngineUnavailableError,
)
from brisk_client.benchmarks.engines import ENGINES
from brisk_client.benchmarks.machine import describe_machine, installed_versions
from brisk_client.benchmarks.model_inputs import make_inputs
from brisk_client.benchmarks.sampling import median_ratio, summarise
from brisk_client.report import Check, Report, plot_bars

SAMPLES = Path(__file__).resolve().parents[3] / "model_repository"

STRICT_LIMIT, LIMIT = 1.15, 1.5
"""Brisk's time over ONNX Runtime's: on the models of ``STRICT``, and on every other."""

STRICT = frozenset({"resnet50", "encoder"})

BASE = "onnxruntime"

IN_PROCESS = "in process"
"""The key ``path`` of a row says what lies between the caller and the engine."""

NOTES = (
    "one process for each engine; only one computes at a time",
    "onnxruntime: session.intra_op.allow_spinning=0; 'onnxruntime spinning': its default",
    "times are of one inference with numpy arrays in and out; spread: interquartile range",
    "ratio to onnxruntime: median over rounds of the medians' quotient, the faster of its two "
    "settings in that round",
    "torch eager: the same network written in torch, with weights of its own",
    "max difference: greatest absolute difference of any output from onnxruntime's",
)


def run(
    quick: bool = False,
    models: Sequence[Path] | None = None,
    threads: int = 1,
    sizes: Mapping[str, int] | None = None,
    through_triton: bool = True,
) -> Report:
    """Measure ``models``, the sample entries where None, with ``threads`` threads each.

    ``through_triton``: the samples also through a server (``served``), where ``models`` is None.
    ``sizes``: symbolic dimensions by name (see ``make_inputs``). Raises FileNotFoundError where
    there are no models.
    """
    files = list(models) if models else sorted(SAMPLES.glob("*/*/model.onnx"))
    if not files:
        raise FileNotFoundError(f"no models in {SAMPLES}; model_repository/generate.py makes them")
    report = Report(
        name="warm",
        machine={**describe_machine(), "threads": threads},
        versions=installed_versions("torch", "onnxruntime", "openvino", "onnx", "numpy"),
        rows=[],
        checks=[],
        notes=list(NOTES),
    )
    for file in files:
        _measure_model(file, threads, sizes or {}, (4, 0.3) if quick else (10, 1.0), report)
    if through_triton and not models:
        report.notes += served.NOTES
        served.measure(report, quick, threads)
    return report


def main(arguments: Sequence[str]) -> int:
    """The command line; the exit status is 0 where every check holds."""
    parser = benchmark_parser("warm", __doc__, "few and short rounds")
    parser.add_argument("models", nargs="*", type=Path, help="ONNX files; none: the samples")
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
    sizes = {name: int(size) for name, _, size in (text.partition("=") for text in chosen.size)}
    report = run(chosen.quick, chosen.models or None, chosen.threads, sizes, chosen.served)
    return deliver(
        report,
        chosen,
        lambda folder: plot_bars(report, folder, "median_ms", "model", "engine", "spread_ms"),
    )


def _measure_model(
    file: Path, threads: int, sizes: Mapping[str, int], effort: tuple[int, float], report: Report
) -> None:
    """Add the model's rows and its check. ``effort``: rounds, seconds of each."""
    rounds, duration_s = effort
    name = _label(file)
    bursts: dict[str, list[Burst]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="brisk-warm-")))
        np.savez(folder / "inputs.npz", **make_inputs(file, sizes))
        processes = []
        for engine in ENGINES:
            if threads == 1 and engine == "onnxruntime spinning":
                continue  # one thread has nobody to wait for
            try:
                process = EngineProcess(engine, file, threads, folder)
            except EngineUnavailableError as error:
                report.notes.append(f"{name}: {error}")
                continue
            processes.append(stack.enter_context(process))
            bursts[engine] = []
        for _ in range(rounds):
            for process in processes:
                bursts[process.engine].append(process.measure(duration_s))
        differences = _differences({process.engine: process.outputs() for process in processes})
    ratios = {engine: _ratio(bursts, engine) for engine in bursts}
    for engine, measured in bursts.items():
        report.rows.append(
            _row(name, engine, measured) | ratios[engine] | differences.get(engine, {})
        )
    ratio = ratios.get("brisk", {}).get("ratio_to_onnxruntime")
    if ratio is not None:
        limit = STRICT_LIMIT if name.partition("/")[0] in STRICT else LIMIT
        text = f"{name}: brisk / onnxruntime, {threads} thread(s)"
        report.checks.append(Check(text, ratio, f"<= {limit}", ratio <= limit))
        difference = differences["brisk"]
        text = f"{name}: outputs agree with onnxruntime's"
        close = difference["agrees"]
        report.checks.append(Check(text, close, "rtol 1e-3, atol 1e-4", close))


def _label(file: Path) -> str:
    """ENTRY/VERSION for a repository's model, else the file's name."""
    version = file.resolve().parent
    return f"{version.parent.name}/{version.name}" if version.name.isdigit() else file.stem


def _row(name: str, engine: str, bursts: Sequence[Burst]) -> dict[str, Any]:
    wall = summarise([seconds for burst in bursts for seconds in burst.wall_s])
    processor_s = sum(burst.processor_s for burst in bursts)
    return {
        "model": name,
        "engine": engine,
        "path": IN_PROCESS,
        "median_ms": wall.median * 1e3,
        "spread_ms": wall.spread * 1e3,
        "least_ms": wall.least * 1e3,
        "processor_ms": processor_s / wall.count * 1e3,
        "runs": wall.count,
    }


def _ratio(bursts: Mapping[str, Sequence[Burst]], engine: str) -> dict[str, float]:
    """``engine`` over ONNX Runtime, which is left out where it could not be measured."""
    bases = [bursts[base] for base in (BASE, f"{BASE} spinning") if base in bursts]
    if not bases:
        return {}
    rounds = [
        (_median(ours), min(_median(theirs) for theirs in others))
        for ours, *others in zip(bursts[engine], *bases, strict=True)
    ]
    return {"ratio_to_onnxruntime": round(median_ratio(rounds), 3)}


def _median(burst: Burst) -> float:
    return summarise(burst.wall_s).median


def _differences(outputs: Mapping[str, list[np.ndarray]]) -> dict[str, dict[str, Any]]:
    """Largest difference from ONNX Runtime's outputs, and whether within the tolerance."""
    found: dict[str, dict[str, Any]] = {}
    for engine, arrays in outputs.items():
        if BASE not in outputs or engine == "torch eager":
            continue
        pairs = list(zip(arrays, outputs[BASE], strict=True))
        wide = [(ours.astype(np.float64), theirs.astype(np.float64)) for ours, theirs in pairs]
        found[engine] = {
            "max_difference": max(
                float(np.abs(ours - theirs).max(initial=0)) for ours, theirs in wide
            ),
            "agrees": all(np.allclose(o, t, rtol=1e-3, atol=1e-4) for o, t in wide),
        }
    return found
