"""The parts of `brisk bench cold`, one after the other, in a report that can be resumed."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from brisk_client.benchmarks.cold import PARTS, ColdOptions
from brisk_client.benchmarks.cold.burden import Load, burden
from brisk_client.benchmarks.cold.engines import (
    BESIDE_LOAD,
    ENGINES,
    FROM_DISK,
    LARGER_BATCHES,
    OTHER_WEIGHTS,
    QUICK,
    check_engine,
)
from brisk_client.benchmarks.cold.measure import Effort, Failed, Prepared, measure, prepare_all
from brisk_client.benchmarks.cold.models import (
    MODELS,
    ModelFiles,
    build,
    default_folder,
    given_model,
    model_named,
)
from brisk_client.benchmarks.cold.results import (
    NO_ENGINE,
    UNMEASURED,
    agreements,
    all_checks,
    batch_rows,
    rows_of,
)
from brisk_client.benchmarks.cold.served import measure_served
from brisk_client.benchmarks.engines.model_inputs import HINT, check_files, labelled, were_given
from brisk_client.benchmarks.harness.command_line import UnusableArgumentError
from brisk_client.benchmarks.harness.machine import new_report
from brisk_client.report import Report, plot_bars, show, write_json

QUICK_MODELS = ("resnet50", "encoder")

SERVED_MODELS = ("resnet50", "encoder")
"""Those with a torch form."""

LOADS = (Load(0.0), Load(0.25), Load(0.5), Load(0.5, 1), Load(1.0, 1))
"""What other processes take of the machine (NNV12, Fig. 11): of every core, or of one."""

STABLE = ("processor", "cores", "threads")
"""Of a machine's description: what may not differ between the pieces of one report."""

VERSIONS = ("torch", "onnxruntime", "openvino", "onnx", "numpy")

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


def run_parts(choice: ColdOptions) -> Report:
    """As ``brisk_client.benchmarks.cold.run``."""
    files = [Path(model) for model in choice.models if model.endswith(".onnx")]
    names = [model for model in choice.models if not model.endswith(".onnx")]
    check_files(files)
    for name in names:
        model_named(name)
    for name in choice.engines:
        check_engine(name)
    for name in choice.parts:
        if name not in PARTS:
            raise UnusableArgumentError(
                f"there is no part '{name}'; there are: {', '.join(PARTS)}"
            )
    threads = choice.threads or len(os.sched_getaffinity(0))
    report = new_report("cold", VERSIONS, NOTES, threads=threads)
    if choice.resumes:
        resume(report, choice.file)
    place = choice.folder or default_folder()
    bench = _ColdBench(choice, threads, report, place)
    for name in names if choice.models else MODELS:
        for batch in choice.batches:
            bench.measure(name, batch, partial(build, name, batch, place))
    for name, file in labelled(files).items():
        bench.measure(name, 1, partial(given_model, name, file, place, choice.given))
    report.rows[:] = [row for row in report.rows if row["part"] != "batches"]
    report.rows += batch_rows(report.rows)
    report.checks += all_checks(report.rows)
    return report


def resume(report: Report, file: Path | None) -> None:
    """Take over the rows of an earlier run that ``file`` holds, if any.

    Raises UnusableArgumentError where they are of another machine or of other versions of the
    engines, or where no file was named.
    """
    if file is None:
        raise UnusableArgumentError("--resume needs --json FILE, whose rows it keeps")
    if not file.exists():
        return
    kept = json.loads(file.read_text())
    versions = {*kept["versions"], *report.versions}
    for what, ours, names in (
        ("machine", report.machine, STABLE),
        ("versions", report.versions, versions),
    ):
        theirs = kept[what]
        other = {name: theirs.get(name) for name in names if theirs.get(name) != ours.get(name)}
        if other:
            raise UnusableArgumentError(f"{file} was measured with another {what}: {other}")
    report.rows += kept["rows"]
    report.notes[:] = dict.fromkeys([*report.notes, *kept["notes"]])


class _ColdBench:
    """Measures one model at one batch size after the other, part by part."""

    def __init__(self, choice: ColdOptions, threads: int, report: Report, place: Path) -> None:
        self._choice = choice
        self._threads = threads
        self._report = report
        self._place = place
        self._done = {
            (row["part"], row["model"], row["batch"])
            for row in report.rows
            if "model" in row and "batch" in row
        }

    def measure(self, name: str, batch: int, find: Callable[[], ModelFiles]) -> None:
        """The chosen parts; of a larger batch only the in-process one, and of a quick run the
        parts beside it for QUICK_MODELS. ``find`` gives the files, made when they are needed.

        The report is written after each part, unless an earlier run has measured it.
        """
        parts: dict[str, Callable[[ModelFiles], None]] = {"process": self._hot}
        if batch == 1 and (not self._choice.quick or self._choice.models or name in QUICK_MODELS):
            parts |= {"disk": self._from_disk, "load": self._beside_load}
            if name in SERVED_MODELS[: 1 if self._choice.quick else None]:
                parts["served"] = self._served
        for part, run in parts.items():
            if part not in self._choice.parts or (part, name, batch) in self._done:
                continue
            try:
                files = find()
            except (UnusableArgumentError, OSError) as error:
                self._fail(name, batch, NO_ENGINE, str(error))
                return
            run(files)
            self._done.add((part, name, batch))
            if self._choice.file is not None:
                write_json(self._report, self._choice.file)

    def _fail(self, name: str, batch: int, engine: str, reason: str) -> None:
        """Once a row, however many parts the engine fails in."""
        if engine in OTHER_WEIGHTS and "no torch form" in reason:
            self._report.notes.append(f"{name}: {reason}")  # it is nobody's failure
            return
        row = {"part": UNMEASURED, "model": name, "batch": batch, "engine": engine}
        if not any(row.items() <= known.items() for known in self._report.rows):
            self._report.rows.append({**row, "reason": reason})

    def _failed(self, files: ModelFiles) -> Failed:
        """With the hint at inputs of one's own where they were generated for somebody's model."""
        is_guessed = files.is_given and not were_given(files.model, self._choice.given)
        hint = f" ({HINT})" if is_guessed else ""
        return lambda engine, reason: self._fail(files.name, files.batch, engine, reason + hint)

    def _hot(self, files: ModelFiles) -> None:
        usual = LARGER_BATCHES if files.batch > 1 else QUICK if self._choice.quick else [*ENGINES]
        prepared = self._prepared(files, usual)
        with tempfile.TemporaryDirectory(prefix="brisk-cold-") as folder:
            found = self._rows("process", files, prepared, outputs=Path(folder))
            agree = agreements(Path(folder), prepared)
        for row in found:
            engine = row["engine"]
            if (took_s := prepared[engine].took_s) is not None:
                row["prepare_s"] = round(took_s, 2)
            if engine in agree:
                row["agrees"] = agree[engine]
        self._report.rows += found

    def _from_disk(self, files: ModelFiles) -> None:
        prepared = self._prepared(files, FROM_DISK)
        hot = self._rows("hot", files, prepared)
        hot_ms = {row["engine"]: row["first_ms"] for row in hot}
        self._report.rows += [
            {**row, "hot_ms": hot_ms[row["engine"]]}
            for row in self._rows("disk", files, prepared, dropped=True)
            if row["engine"] in hot_ms
        ]

    def _beside_load(self, files: ModelFiles) -> None:
        prepared = self._prepared(files, BESIDE_LOAD)
        idle_ms: dict[str, float] = {}
        for load in LOADS:
            with burden(load):
                found = self._rows("load", files, prepared)
            for row in found:
                alone_ms = idle_ms.setdefault(row["engine"], row["first_ms"])
                over = round(row["first_ms"] / alone_ms, 3)
                self._report.rows.append({**row, "load": load.name, "over_idle": over})

    def _served(self, files: ModelFiles) -> None:
        rounds = self._effort(files.batch).rounds
        self._report.rows += measure_served(files, self._threads, rounds, self._place)

    def _rows(
        self, part: str, files: ModelFiles, prepared: dict[str, Prepared], **how: Any
    ) -> list[dict[str, Any]]:
        effort, fail = self._effort(files.batch), self._failed(files)
        measured = measure(files, prepared, self._threads, effort, fail, **how)
        return rows_of(part, files.name, files.batch, measured)

    def _prepared(self, files: ModelFiles, usual: Sequence[str]) -> dict[str, Prepared]:
        engines = self._choice.engines or usual
        return prepare_all(files, engines, self._threads, self._failed(files))

    def _effort(self, batch: int) -> Effort:
        """Of larger batches the first and the second answer only."""
        rounds = self._choice.rounds or (3 if self._choice.quick else 7)
        if batch > 1:
            return Effort(rounds, 0.0, following=1)
        return Effort(rounds, 0.15 if self._choice.quick else 0.4)


def by_part(report: Report) -> list[Report]:
    """A report for each part's rows, since the parts' columns differ."""
    parts = dict.fromkeys(row["part"] for row in report.rows)
    found = []
    for part in parts:
        own = [
            {key: value for key, value in row.items() if key != "part"}
            for row in report.rows
            if row["part"] == part
        ]
        name = f"cold, {part}"
        found.append(dataclasses.replace(report, name=name, rows=own, checks=[], notes=[]))
    return found


def show_parts(report: Report) -> None:
    """Print the parts' rows, then every check and note."""
    for part in by_part(report):
        show(part)
    show(dataclasses.replace(report, rows=[]))


def plot_parts(report: Report, folder: Path) -> list[Path]:
    """A file for each part and model: first answers; for each batch size: speed-ups."""
    files: list[Path] = []
    for part in by_part(report):
        name = part.name.replace(", ", "-")
        for row in part.rows:
            if "load" in row:
                row["engine"] += f", {row['load']}"
        drawn = dataclasses.replace(part, name=name)
        files += plot_bars(drawn, folder, "first_ms", "model", "engine", "spread_ms")
        files += plot_bars(drawn, folder, "over_onnxruntime", "batch", "engine")
    return files
