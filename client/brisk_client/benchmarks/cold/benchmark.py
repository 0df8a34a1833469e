"""The parts of `brisk bench cold`, one after the other."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from brisk_client.benchmarks.cold import results
from brisk_client.benchmarks.cold.answers import answer_check
from brisk_client.benchmarks.cold.breakdown import to_chrome
from brisk_client.benchmarks.cold.burden import Burden
from brisk_client.benchmarks.cold.figures import draw_all
from brisk_client.benchmarks.cold.measure import Effort, Prepared, measure, prepare_all
from brisk_client.benchmarks.cold.models import (
    MODELS,
    ModelFiles,
    build,
    default_folder,
    model_of,
)
from brisk_client.benchmarks.cold.registry import (
    BASE,
    PREPARED,
    UNPREPARED,
    default_engines,
    engine_of,
)
from brisk_client.benchmarks.cold.served import measure_served
from brisk_client.benchmarks.machine import describe_machine, installed_versions
from brisk_client.report import Report

QUICK_MODELS = ("resnet50", "encoder")

SERVED_MODELS = ("resnet50", "encoder")
"""Those with a torch form."""

DISK_ENGINES = (PREPARED, UNPREPARED, BASE, "onnxruntime optimised", "openvino cached")
"""Those whose time from the disk is compared with reading the same bytes."""

LOADS = (0.0, 0.25, 0.5)
"""Shares of every core that other processes take (NNV12, Fig. 11)."""

LOAD_ENGINES = (PREPARED, "brisk baseline", BASE)

NOTES = (
    "first: from the load call to the first answer, in a fresh process whose libraries are "
    "imported and which has computed nothing; second, third: the inferences after it; warm: "
    "median of later ones",
    "speed-up: ONNX Runtime's first answer at its defaults over this one's, median over rounds",
    "all engines: the same number of threads; Brisk and 'onnxruntime huge pages' run with the "
    "allocator settings that Brisk gives its runtime and the 32 MB a worker takes at its start, "
    "the others as they come",
    "utilisation: share of the first answer's time in which a layer ran",
)


def run_parts(
    quick: bool,
    models: Sequence[str],
    engines: Sequence[str],
    parts: Sequence[str],
    threads: int,
    batches: Sequence[int],
    folder: Path | None,
    plots: Path | None,
) -> Report:
    """See ``brisk_client.benchmarks.cold.run``."""
    threads = threads or len(os.sched_getaffinity(0))
    chosen = [model_of(name) for name in models] or [
        model for model in MODELS if not quick or model.name in QUICK_MODELS
    ]
    names = [engine_of(name).name for name in engines] or default_engines(quick)
    report = Report(
        name="cold",
        machine={**describe_machine(), "threads": threads},
        versions=installed_versions("torch", "onnxruntime", "openvino", "onnx", "numpy"),
        rows=[],
        checks=[],
        notes=list(NOTES),
    )
    effort = Effort(3, 0.15) if quick else Effort(7, 0.4)
    place = folder or default_folder()
    by_model: dict[str, results.Measured] = {}
    for model in chosen:
        for batch in batches:
            files = build(model, batch, place)
            prepared = prepare_all(files, names, threads, report.notes.append)
            if "process" in parts:
                measured = _hot(files, prepared, threads, effort, report)
                if batch == min(batches):
                    by_model[model.name] = measured
                    _write_trace(plots, model.name, measured)
            if batch != min(batches):
                continue
            if "disk" in parts:
                _from_disk(files, prepared, threads, effort, report)
            if "load" in parts and (not quick or model is chosen[0]):
                _beside_load(files, prepared, threads, effort, report)
            if "served" in parts and model.name in SERVED_MODELS[: 1 if quick else None]:
                measure_served(report, files, threads, effort.rounds, place)
    report.checks += results.in_process_checks(by_model)
    if plots is not None:
        draw_all(report, plots)
    return report


def _hot(
    files: ModelFiles,
    prepared: dict[str, Prepared],
    threads: int,
    effort: Effort,
    report: Report,
) -> results.Measured:
    with tempfile.TemporaryDirectory(prefix="brisk-cold-") as answers:
        outputs = Path(answers)
        measured = measure(files, prepared, threads, effort, report.notes.append, outputs=outputs)
        check = answer_check(f"{files.name}, batch {files.batch}", outputs, list(measured))
    if check is not None:
        report.checks.append(check)
    rows = results.rows("process", files.name, files.batch, measured)
    for row in rows:
        row["prepare_s"] = round(prepared[row["engine"]].took_s, 2)
    report.rows += rows
    if files.batch == 1:
        report.rows += results.breakdown_rows(files.name, measured)
        report.rows += results.reuse_rows(files.name, measured)
    return measured


def _from_disk(
    files: ModelFiles,
    prepared: dict[str, Prepared],
    threads: int,
    effort: Effort,
    report: Report,
) -> None:
    chosen = {name: ready for name, ready in prepared.items() if name in DISK_ENGINES}
    measured = measure(files, chosen, threads, effort, report.notes.append, dropped=True)
    report.rows += results.rows("disk", files.name, files.batch, measured)


def _beside_load(
    files: ModelFiles,
    prepared: dict[str, Prepared],
    threads: int,
    effort: Effort,
    report: Report,
) -> None:
    chosen = {name: ready for name, ready in prepared.items() if name in LOAD_ENGINES}
    for share in LOADS:
        with Burden(share):
            measured = measure(files, chosen, threads, effort, report.notes.append)
        report.rows += [
            {**row, "load": share}
            for row in results.rows("load", files.name, files.batch, measured)
        ]


def _write_trace(plots: Path | None, model: str, measured: results.Measured) -> None:
    """Timelines of the typical starts, for chrome://tracing and Perfetto."""
    if plots is None:
        return
    plots.mkdir(parents=True, exist_ok=True)
    for engine, samples in measured.items():
        details = results.typical(samples)
        if details.get("timeline"):
            title = f"{model}, {engine}"
            trace = to_chrome(details["timeline"], details["started_ns"], title)
            file = plots / f"cold-trace-{model}-{engine.replace(' ', '-')}.json"
            file.write_text(json.dumps(trace))
