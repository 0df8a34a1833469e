"""The parts of `brisk bench cold`, one after the other."""

from __future__ import annotations

import functools
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from brisk_client.benchmarks.cold import results
from brisk_client.benchmarks.cold.answers import agreements
from brisk_client.benchmarks.cold.batches import batch_rows
from brisk_client.benchmarks.cold.breakdown import to_chrome
from brisk_client.benchmarks.cold.burden import Burden, Load
from brisk_client.benchmarks.cold.expectations import all_checks
from brisk_client.benchmarks.cold.figures import draw_all
from brisk_client.benchmarks.cold.ledger import Ledger
from brisk_client.benchmarks.cold.measure import Effort, Prepared, measure, prepare_all
from brisk_client.benchmarks.cold.models import (
    MODELS,
    ModelFiles,
    build,
    default_folder,
    model_of,
)
from brisk_client.benchmarks.cold.registry import (
    BESIDE_LOAD,
    FROM_DISK,
    LARGER_BATCHES,
    default_engines,
    engine_of,
)
from brisk_client.benchmarks.cold.served import measure_served
from brisk_client.benchmarks.machine import describe_machine, installed_versions
from brisk_client.report import Report

QUICK_MODELS = ("resnet50", "encoder")

SERVED_MODELS = ("resnet50", "encoder")
"""Those with a torch form."""

LOADS = (Load(0.0), Load(0.25), Load(0.5), Load(0.5, 1), Load(1.0, 1))
"""What other processes take of the machine (NNV12, Fig. 11): of every core, or of one."""

NOTES = (
    "first: from the load call to the first answer, in a fresh process whose libraries are "
    "imported and which has started and run nothing but a small network (what an idle worker of "
    "Brisk does by itself; ONNX Runtime and OpenVINO get the same, torch nothing); second, "
    "third: the inferences after it; warm: median of later ones",
    "speed-up: ONNX Runtime's first answer at its defaults over this one's, median over rounds",
    "all engines: the same number of threads; Brisk and 'onnxruntime huge pages' run with the "
    "allocator settings that Brisk gives its runtime and the 32 MB a worker takes at its start, "
    "the others as they come",
    "utilisation: share of the first answer's time in which a layer ran",
    "batches: speed-ups over 'brisk baseline', geometric means over the models that were measured "
    "at that size; 'warm' is Brisk's second answer",
)


@dataclass(frozen=True, slots=True)
class Choice:
    """What of the benchmark is run; see ``brisk_client.benchmarks.cold.run``."""

    quick: bool
    models: Sequence[str]
    engines: Sequence[str]
    parts: Sequence[str]
    threads: int
    batches: Sequence[int]
    rounds: int
    folder: Path | None
    plots: Path | None


def run_parts(choice: Choice, file: Path | None, *, resumes: bool) -> Report:
    """``file`` takes the report after every piece, of which those it holds are left out."""
    threads = choice.threads or len(os.sched_getaffinity(0))
    report = Report(
        name="cold",
        machine={**describe_machine(), "threads": threads},
        versions=installed_versions("torch", "onnxruntime", "openvino", "onnx", "numpy"),
        rows=[],
        checks=[],
        notes=list(NOTES),
    )
    bench = _Bench(choice, threads, report, Ledger(report, file, resumes=resumes))
    for model in _models(choice):
        for batch in choice.batches:
            bench.measure(model, batch)
    report.rows[:] = [row for row in report.rows if row["part"] != "batches"]
    report.rows += batch_rows(report.rows)
    report.checks += all_checks(report.rows)
    if choice.plots is not None:
        draw_all(report, choice.plots)
    return report


def _models(choice: Choice) -> list[str]:
    chosen = [model_of(name).name for name in choice.models]
    return chosen or [
        model.name for model in MODELS if not choice.quick or model.name in QUICK_MODELS
    ]


class _Bench:
    """Measures one model at one batch size after the other, part by part."""

    def __init__(self, choice: Choice, threads: int, report: Report, ledger: Ledger) -> None:
        self._choice = choice
        self._threads = threads
        self._report = report
        self._ledger = ledger
        self._place = choice.folder or default_folder()
        self._named = [engine_of(name).name for name in choice.engines]

    def measure(self, name: str, batch: int) -> None:
        """The chosen parts; of a larger batch only the in-process one."""
        parts: dict[str, Callable[[ModelFiles], None]] = {"process": self._hot}
        if batch == 1:
            parts |= {"disk": self._from_disk, "load": self._beside_load}
            if name in SERVED_MODELS[: 1 if self._choice.quick else None]:
                parts["served"] = self._served
        for part, run in parts.items():
            if part in self._choice.parts and not self._ledger.is_done(part, name, batch):
                files = build(model_of(name), batch, self._place)
                self._ledger.measure(part, name, batch, functools.partial(run, files))

    def _hot(self, files: ModelFiles) -> None:
        defaults = default_engines(self._choice.quick) if files.batch == 1 else LARGER_BATCHES
        prepared = self._prepared(files, self._named or defaults)
        effort = self._effort(files.batch)
        note = self._report.notes.append
        with tempfile.TemporaryDirectory(prefix="brisk-cold-") as folder:
            answers = Path(folder)
            measured = measure(files, prepared, self._threads, effort, note, outputs=answers)
            agree = agreements(answers, list(measured))
        rows = results.rows("process", files.name, files.batch, measured)
        for row in rows:
            engine = row["engine"]
            if (took_s := prepared[engine].took_s) is not None:
                row["prepare_s"] = round(took_s, 2)
            if engine in agree:
                row["agrees"] = agree[engine]
        self._report.rows += rows
        if files.batch == 1:
            self._report.rows += results.breakdown_rows(files.name, measured)
            self._report.rows += results.reuse_rows(files.name, measured)
            _write_trace(self._choice.plots, files.name, measured)

    def _from_disk(self, files: ModelFiles) -> None:
        prepared = self._prepared(files, self._named or FROM_DISK)
        effort, note = self._effort(files.batch), self._report.notes.append
        hot = results.rows("hot", "", 1, measure(files, prepared, self._threads, effort, note))
        measured = measure(files, prepared, self._threads, effort, note, dropped=True)
        hot_ms = {row["engine"]: row["first_ms"] for row in hot}
        self._report.rows += [
            {**row, "hot_ms": hot_ms[row["engine"]]}
            for row in results.rows("disk", files.name, files.batch, measured)
            if row["engine"] in hot_ms
        ]

    def _beside_load(self, files: ModelFiles) -> None:
        prepared = self._prepared(files, self._named or BESIDE_LOAD)
        idle_ms: dict[str, float] = {}
        for load in LOADS:
            with Burden(load):
                measured = measure(
                    files,
                    prepared,
                    self._threads,
                    self._effort(files.batch),
                    self._report.notes.append,
                )
            for row in results.rows("load", files.name, files.batch, measured):
                alone_ms = idle_ms.setdefault(row["engine"], row["first_ms"])
                over = round(row["first_ms"] / alone_ms, 3)
                self._report.rows.append({**row, "load": load.name, "over_idle": over})

    def _served(self, files: ModelFiles) -> None:
        rounds = self._effort(files.batch).rounds
        measure_served(self._report, files, self._threads, rounds, self._place)

    def _prepared(self, files: ModelFiles, engines: Sequence[str]) -> dict[str, Prepared]:
        return prepare_all(files, engines, self._threads, self._report.notes.append)

    def _effort(self, batch: int) -> Effort:
        """Of larger batches the first and the second answer only."""
        rounds = self._choice.rounds or (3 if self._choice.quick else 7)
        if batch > 1:
            return Effort(rounds, 0.0, following=1)
        return Effort(rounds, 0.15 if self._choice.quick else 0.4)


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
