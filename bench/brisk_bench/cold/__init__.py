"""`brisk bench cold`: from "load this model" to its first answer.

In process: each engine in a fresh process whose libraries are imported and which has computed
nothing but an unrelated small model, engines in turns.
Then the same with the page cache dropped, and through a real Triton.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brisk_bench.cold.measure import measure
from brisk_bench.cold.results import NO_ENGINE, UNMEASURED, agreements, all_checks, rows_of
from brisk_bench.cold.served import measure_served
from brisk_bench.engines.model_inputs import (
    HINT,
    add_input_option,
    add_models_option,
    given_models,
    labelled,
    were_given,
)
from brisk_bench.engines.networks import MODELS, SMOKE, ModelFiles, build, given_model
from brisk_bench.engines.registry import (
    BARE_PEERS,
    BASE,
    BRISK,
    COLD,
    PREPARED_PEERS,
    TORCH,
    UNPREPARED,
)
from brisk_bench.harness.command_line import (
    UnusableArgumentError,
    benchmark_parser,
    check_known,
    listed,
    run_command,
)
from brisk_bench.harness.machine import new_report
from brisk_bench.harness.report import REASON, Report, plot_bars

PARTS = ("process", "disk", "served")
"""Parts: in process with a hot page cache; from the disk; through Triton."""

QUICK = (BRISK, UNPREPARED, *BARE_PEERS, *PREPARED_PEERS, "openvino cached", TORCH)
"""Engines of a quick run: Brisk as its runtime starts models, and what it is compared with."""

FROM_DISK = (BRISK, UNPREPARED, BASE, *PREPARED_PEERS, "openvino cached")

QUICK_MODELS = SERVED_MODELS = ("resnet50", "encoder")
"""Models of a quick run's further parts, and those that are served: they have a torch form."""

VERSIONS = ("torch", "onnxruntime", "openvino", "onnx", "numpy")

NOTES = (
    "first: from the load call to the first answer, in a fresh process that was forked from one "
    "with the engine's libraries imported; second, third: the inferences after it; warm: median "
    "of later ones",
    "the same for all engines before the clock: threads, allocator settings, 60 MB of memory "
    "given, an unrelated small model started and run by the engine's measured means, the files "
    "read into the page cache (or dropped, part disk); 'onnxruntime as it comes' goes without "
    "the allocator settings and the memory",
    "onnxruntime prepared: the model optimised and saved with external weights by ONNX Runtime, "
    "loaded with optimisation off, with and without packing weights anew",
    "speed-up: ONNX Runtime's first answer at its defaults over this one's, median over rounds; "
    "over bare peer, over prepared peer: the same with the sooner of ONNX Runtime's starts from "
    "the file (default, optimisation off) and the sooner of its prepared ones",
    "served: a server for each load, so that none has computed the model before; Brisk's runtime "
    "runs, and a Python-backend model imports its engine with its load, since each has a process "
    "of its own",
    "served, parts of the first answer, medians each: stub is Triton, the start of the stub's "
    "process with its imports, and the ways of request and answer; parse: the model is read, if "
    "that is apart from load; load: sessions are made while the load call or the first request "
    "waits for them; run: the first request is computed; beside: lanes make sessions meanwhile",
    "served, answer_2 to answer_20: from the load call to that answer of a closed loop",
)


def run(
    quick: bool = False,
    model: Sequence[str] = (),
    models: Sequence[Path] = (),
    inputs: Sequence[str] = (),
    engines: Sequence[str] = (),
    parts: Sequence[str] = PARTS,
    threads: int = 0,
    rounds: int = 0,
    folder: Path | None = None,
) -> Report:
    """Measure ``model``, names of MODELS or ONNX files, and all files in the folders ``models``.

    Empty ``model`` and ``engines`` mean all, ``threads`` 0 all usable cores, ``rounds`` 0 the
    default. ``inputs``: values of ``--input``, for one file. ``folder`` keeps built models and
    what engines prepare. Raises UnusableArgumentError for an unknown name.
    """
    named = [Path(each) for each in model if each.endswith(".onnx")]
    names = [each for each in model if not each.endswith(".onnx")]
    files, given_inputs = given_models(named, models, inputs, len(names))
    check_known("model", [name for name in names if name != SMOKE], MODELS)
    check_known("engine", engines, COLD)
    check_known("part", parts, PARTS)
    threads = threads or len(os.sched_getaffinity(0))
    report = new_report("cold", VERSIONS, NOTES, threads=threads)
    bench = _ColdBench(report, quick, engines, threads, rounds or (3 if quick else 7))
    cache = Path(os.environ.get("BRISK_CACHE_DIR") or Path.home() / ".cache" / "brisk")
    place = folder or cache / "bench-cold"
    chosen = [part for part in PARTS if part in parts]
    for name in names if names or files else MODELS:
        is_small = quick and not model and name not in QUICK_MODELS
        served = SERVED_MODELS[: 1 if quick else None]
        skipped = PARTS[1:] if is_small else () if name in served else PARTS[2:]
        own = [part for part in chosen if part not in skipped]
        if own:
            bench.measure(build(name, place), own)
    for name, file in labelled(files).items():
        try:
            model_files = given_model(name, file, place, given_inputs)
        except (UnusableArgumentError, OSError) as error:
            bench.fail(name, NO_ENGINE, str(error))
            continue
        hint = "" if were_given(file, given_inputs) else f" ({HINT})"
        bench.measure(model_files, [part for part in chosen if part != "served"], hint)
    report.checks += all_checks(report.rows)
    return report


def main(arguments: Sequence[str]) -> int:
    parser = benchmark_parser("cold", __doc__, "fewer samples and engines")
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME",
        help=f"{', '.join(MODELS)}, or an ONNX file",
    )
    add_models_option(parser)
    add_input_option(parser)
    parser.add_argument(
        "--engines", type=listed, default=(), metavar="A,B", help=f"{', '.join(COLD)}"
    )
    parser.add_argument(
        "--parts", type=listed, default=PARTS, metavar="A,B", help=f"of {', '.join(PARTS)}"
    )
    parser.add_argument("--threads", type=int, default=0, help="of every engine (default: cores)")
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help="of all engines")
    parser.add_argument("--folder", type=Path, help="for models and artefacts")
    return run_command(parser, arguments, run, plot_parts)


@dataclass(frozen=True, slots=True)
class _ColdBench:
    """Measures one model after the other, part by part."""

    report: Report
    quick: bool
    engines: Sequence[str]
    threads: int
    rounds: int

    def measure(self, files: ModelFiles, parts: Sequence[str], hint: str = "") -> None:
        """Measure the parts. ``hint``: appended to the reason why an engine cannot be measured."""
        if "process" in parts:
            engines = self.engines or (QUICK if self.quick else [*COLD])
            self.report.rows += self._rows("process", files, engines, hint)
        if "disk" in parts:
            engines = self.engines or FROM_DISK
            hot = self._rows("hot", files, engines, hint)
            hot_ms = {row["engine"]: row["first_ms"] for row in hot}
            self.report.rows += [
                {**row, "hot_ms": hot_ms[row["engine"]]}
                for row in self._rows("disk", files, list(hot_ms), hint, dropped=True)
            ]
        if "served" in parts:
            self.report.rows += measure_served(files, self.threads, self.rounds)

    def fail(self, model: str, engine: str, reason: str) -> None:
        """Add a row with the reason, once however many parts the engine fails in.

        A missing torch form is no failure, only a note.
        """
        if engine == TORCH and "no torch form" in reason:
            self.report.notes.append(f"{model}: {reason}")  # no engine has failed
            return
        row = {"part": UNMEASURED, "model": model, "batch": 1, "engine": engine}
        if not any(row.items() <= other.items() for other in self.report.rows):
            self.report.rows.append({**row, REASON: reason})

    def _rows(
        self,
        part: str,
        files: ModelFiles,
        engines: Sequence[str],
        hint: str,
        *,
        dropped: bool = False,
    ) -> list[dict[str, Any]]:
        effort = self.rounds, 0.15 if self.quick else 0.4
        with tempfile.TemporaryDirectory(prefix="brisk-cold-") as folder:
            samples, failed = measure(
                files, engines, self.threads, effort, Path(folder), dropped=dropped
            )
            agree = agreements(Path(folder), samples)
        for engine, reason in failed.items():
            self.fail(files.name, engine, reason + hint)
        rows = rows_of(part, files.name, samples)
        for row in rows:
            if row["engine"] in agree:
                row["agrees"] = agree[row["engine"]]
        return rows


def plot_parts(report: Report, folder: Path) -> list[Path]:
    """Plot the first answers, a file for each part and model."""
    rows = [{**row, "group": f"{row['part']} {row['model']}"} for row in report.rows]
    drawn = dataclasses.replace(report, rows=rows)
    return plot_bars(drawn, folder, "first_ms", "group", "engine", "spread_ms")
