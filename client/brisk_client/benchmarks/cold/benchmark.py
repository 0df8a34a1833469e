"""The parts of `brisk bench cold`, one after the other."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from brisk_client.benchmarks.cold.machine.burden import Burden, Load
from brisk_client.benchmarks.cold.measure import Effort, Failed, Prepared, measure, prepare_all
from brisk_client.benchmarks.cold.models import (
    MODELS,
    ModelFiles,
    build,
    default_folder,
    given_model,
    model_of,
)
from brisk_client.benchmarks.cold.registry import (
    BESIDE_LOAD,
    FROM_DISK,
    LARGER_BATCHES,
    default_engines,
    engine_of,
)
from brisk_client.benchmarks.cold.report import results
from brisk_client.benchmarks.cold.report.batches import OTHER_WEIGHTS, agreements, batch_rows
from brisk_client.benchmarks.cold.report.expectations import NO_ENGINE, UNMEASURED, all_checks
from brisk_client.benchmarks.cold.report.figures import draw_all
from brisk_client.benchmarks.cold.report.ledger import Ledger
from brisk_client.benchmarks.cold.served import measure_served
from brisk_client.benchmarks.engines.model_files import labelled
from brisk_client.benchmarks.engines.model_inputs import (
    HINT,
    NOTHING_GIVEN,
    GivenInputs,
    InvalidInputError,
    were_given,
)
from brisk_client.benchmarks.harness.machine import describe_machine, installed_versions
from brisk_client.report import Report

QUICK_MODELS = ("resnet50", "encoder")

SERVED_MODELS = ("resnet50", "encoder")
"""Those with a torch form."""

LOADS = (Load(0.0), Load(0.25), Load(0.5), Load(0.5, 1), Load(1.0, 1))
"""What other processes take of the machine (NNV12, Fig. 11): of every core, or of one."""

NOTES = (
    "first: from the load call to the first answer, in a fresh process that was forked from one "
    "with the engine's libraries imported; second, third: the inferences after it; warm: median "
    "of later ones",
    "the same for all engines before the clock: threads, allocator settings, 60 MB of memory "
    "given, an unrelated small model started and run by the engine's measured means, the files "
    "read into the page cache (or dropped, part disk); 'onnxruntime as it comes' goes without "
    "the allocator settings and the memory; AOTInductor's unrelated model is torch's, eager",
    "onnxruntime prepared: the model optimised and saved with external weights by ONNX Runtime, "
    "loaded with optimisation off, with and without packing weights anew",
    "speed-up: ONNX Runtime's first answer at its defaults over this one's, median over rounds; "
    "over bare peer, over prepared peer: the same with the sooner of ONNX Runtime's starts from "
    "the file (default, optimisation off) and the sooner of its prepared ones",
    "batches: speed-ups over onnxruntime, geometric means over the models that were measured at "
    "that size; 'warm' is Brisk's second answer",
    "served: each server loads a model once per engine, so that none has computed it before; "
    "Brisk's runtime runs, and a Python-backend model imports its engine with its load, since "
    "each has a process of its own",
)


@dataclass(frozen=True, slots=True)
class ColdOptions:
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
    given: GivenInputs = NOTHING_GIVEN


def run_parts(choice: ColdOptions, file: Path | None, *, resumes: bool) -> Report:
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
    bench = _ColdBench(choice, threads, report, Ledger(report, file, resumes=resumes))
    for name in _built(choice):
        for batch in choice.batches:
            bench.measure(name, batch, functools.partial(bench.built, name, batch))
    for name, file in labelled([Path(model) for model in choice.models if is_file(model)]).items():
        bench.measure(name, 1, functools.partial(bench.given, name, file))
    report.rows[:] = [row for row in report.rows if row["part"] != "batches"]
    report.rows += batch_rows(report.rows)
    report.checks += all_checks(report.rows)
    if choice.plots is not None:
        draw_all(report, choice.plots)
    return report


def is_file(model: str) -> bool:
    """Whether it names an ONNX file rather than a model of the benchmark's own."""
    return model.endswith(".onnx")


def _built(choice: ColdOptions) -> list[str]:
    """Names of the benchmark's own models: those chosen, all where nothing was."""
    if choice.models:
        return [model_of(name).name for name in choice.models if not is_file(name)]
    return [model.name for model in MODELS]


class _ColdBench:
    """Measures one model at one batch size after the other, part by part."""

    def __init__(self, choice: ColdOptions, threads: int, report: Report, ledger: Ledger) -> None:
        self._choice = choice
        self._threads = threads
        self._report = report
        self._ledger = ledger
        self._place = choice.folder or default_folder()
        self._named = [engine_of(name).name for name in choice.engines]

    def built(self, name: str, batch: int) -> ModelFiles:
        return build(model_of(name), batch, self._place)

    def given(self, name: str, file: Path) -> ModelFiles:
        return given_model(name, file, self._place, self._choice.given)

    def measure(self, name: str, batch: int, find: Callable[[], ModelFiles]) -> None:
        """The chosen parts; of a larger batch only the in-process one, and of a quick run the
        parts beside it for QUICK_MODELS. ``find`` gives the files, made when they are needed."""
        parts: dict[str, Callable[[ModelFiles], None]] = {"process": self._hot}
        if batch == 1 and (not self._choice.quick or self._choice.models or name in QUICK_MODELS):
            parts |= {"disk": self._from_disk, "load": self._beside_load}
            if name in SERVED_MODELS[: 1 if self._choice.quick else None]:
                parts["served"] = self._served
        for part, run in parts.items():
            if part not in self._choice.parts or self._ledger.is_done(part, name, batch):
                continue
            try:
                files = find()
            except (InvalidInputError, OSError) as error:
                self._fail(name, batch, NO_ENGINE, str(error))
                return
            self._ledger.measure(part, name, batch, functools.partial(run, files))

    def _fail(self, name: str, batch: int, engine: str, reason: str) -> None:
        """Once a row, however many parts the engine fails in."""
        if engine in OTHER_WEIGHTS and "no torch form" in reason:
            self._report.notes.append(f"{name}: {reason}")  # it is nobody's failure
            return
        row = {"part": UNMEASURED, "model": name, "batch": batch, "engine": engine}
        reason = reason.removeprefix(f"{engine}: ")
        if not any(row.items() <= known.items() for known in self._report.rows):
            self._report.rows.append({**row, "reason": reason})

    def _failed(self, files: ModelFiles) -> Failed:
        """With the hint at inputs of one's own where they were generated for somebody's model."""
        is_guessed = files.is_given and not were_given(files.model, self._choice.given)
        hint = f" ({HINT})" if is_guessed else ""
        return lambda engine, reason: self._fail(files.name, files.batch, engine, reason + hint)

    def _hot(self, files: ModelFiles) -> None:
        defaults = default_engines(self._choice.quick) if files.batch == 1 else LARGER_BATCHES
        prepared = self._prepared(files, self._named or defaults)
        effort = self._effort(files.batch)
        fail = self._failed(files)
        with tempfile.TemporaryDirectory(prefix="brisk-cold-") as folder:
            answers = Path(folder)
            measured = measure(files, prepared, self._threads, effort, fail, outputs=answers)
            agree = agreements(answers, list(measured))
        rows = results.rows("process", files.name, files.batch, measured)
        for row in rows:
            engine = row["engine"]
            if (took_s := prepared[engine].took_s) is not None:
                row["prepare_s"] = round(took_s, 2)
            if engine in agree:
                row["agrees"] = agree[engine]
        self._report.rows += rows

    def _from_disk(self, files: ModelFiles) -> None:
        prepared = self._prepared(files, self._named or FROM_DISK)
        effort, fail = self._effort(files.batch), self._failed(files)
        hot = results.rows("hot", "", 1, measure(files, prepared, self._threads, effort, fail))
        measured = measure(files, prepared, self._threads, effort, fail, dropped=True)
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
                    self._failed(files),
                )
            for row in results.rows("load", files.name, files.batch, measured):
                alone_ms = idle_ms.setdefault(row["engine"], row["first_ms"])
                over = round(row["first_ms"] / alone_ms, 3)
                self._report.rows.append({**row, "load": load.name, "over_idle": over})

    def _served(self, files: ModelFiles) -> None:
        rounds = self._effort(files.batch).rounds
        measure_served(self._report, files, self._threads, rounds, self._place)

    def _prepared(self, files: ModelFiles, engines: Sequence[str]) -> dict[str, Prepared]:
        return prepare_all(files, engines, self._threads, self._failed(files))

    def _effort(self, batch: int) -> Effort:
        """Of larger batches the first and the second answer only."""
        rounds = self._choice.rounds or (3 if self._choice.quick else 7)
        if batch > 1:
            return Effort(rounds, 0.0, following=1)
        return Effort(rounds, 0.15 if self._choice.quick else 0.4)
