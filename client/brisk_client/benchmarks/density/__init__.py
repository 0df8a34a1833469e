"""`brisk bench density`: many small models on one server.

One server after the other, each with N entries of the same model, a copy of the file each: Brisk,
the Python backend with ONNX Runtime, and other backends from a folder that `--peer-backends`
names. A client waits for all of them, asks each once, and again; then the memory of all the
server's processes is read. Beside it, what Brisk's runtime holds without a model, and what one
larger model adds to it.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tritonclient.utils import InferenceServerException

from brisk.errors import BriskError
from brisk.triton.backend_directory import assemble
from brisk.triton.locate import locate_server
from brisk_client.benchmarks.density.memory import session_bytes
from brisk_client.benchmarks.density.servers import (
    BRISK,
    DensityBench,
    all_sides,
    figures_of,
    figures_of_runtime,
)
from brisk_client.benchmarks.engines.process import EngineUnavailableError, one_line
from brisk_client.benchmarks.harness.command_line import benchmark_parser, deliver, measured
from brisk_client.benchmarks.harness.machine import new_report
from brisk_client.benchmarks.harness.peer_backends import (
    ONNXRUNTIME,
    add_peers_option,
    peer_backends,
)
from brisk_client.benchmarks.start.case import case_of
from brisk_client.report import REASON, Check, Report, plot_bars

SMALL, LARGE = "mlp", "resnet50"
QUICK_ENTRIES, COUNT = 10, 40
QUICK_STARTS, STARTS = 1, 3

ENTRIES, IDLE, MODEL = "entries", "idle runtime", "one model"
"""Parts of the report."""

PEER = f"{ONNXRUNTIME} backend"
STAND_IN_ENTRIES, STAND_IN_MB, STAND_IN_READY_S = 40, 1050.0, 2.5
"""Of Triton's C++ backend with so many `mlp`, for a machine without it."""

MEMORY_SHARE, STUB_MB, IDLE_MB, MODEL_SHARE = 0.6, 8.0, 90.0, 0.2

Rows = Sequence[Mapping[str, Any]]

_FAILURES = (BriskError, InferenceServerException, HTTPException, OSError)

NOTES = (
    "sides in turns, each round in an order of its own; one start of each before, not counted, "
    "fills the page cache; medians over starts",
    "ready: from the exec of tritonserver until it says that all its entries are ready, "
    "--disable-auto-complete-config",
    "memory: private bytes (Private_Clean and Private_Dirty) of all processes of the side, and "
    "once each page of memfds and /dev/shm that processes share; read when it has stopped "
    "changing after two rounds of requests",
    "stubs, fork server (with its launchers), runtime (all its processes): private; stub: median "
    "of the stubs, largest: of the largest",
    "first round, second round: p50 over entries, each asked once in a round",
    "idle runtime: proportional set size of supervisor and both workers, which counts each page "
    "once; one model, own: dirty private bytes (no pages of files, which the kernel drops) that "
    "a model has added to the runtime, or to a process that had imported ONNX Runtime; of Brisk "
    "when the prepared form has taken over, and (first own) before that",
)


def run(
    quick: bool = False,
    entries: int = 0,
    starts: int = 0,
    threads: int = 0,
    peers: Path | None = None,
    small: str = SMALL,
    large: str = LARGE,
) -> Report:
    """Measure servers of ``entries`` times ``small``, and a runtime without a model and with
    ``large``: samples by name, or ONNX files.

    ``entries``, ``starts``, ``threads``: 0: the usual; all cores. Raises UnusableArgumentError
    before anything is measured.
    """
    threads = threads or len(os.sched_getaffinity(0))
    backends = peer_backends(peers)
    cases = [case_of(model) for model in (small, large)]
    versions = ("onnxruntime", "nvidia-pytriton", "numpy")
    report = new_report("density", versions, NOTES, threads=threads)
    installation = locate_server()
    with tempfile.TemporaryDirectory(prefix="brisk-density-") as folder:
        place = Path(folder)
        assembled = assemble(place / "backends", installation)
        count = entries or (QUICK_ENTRIES if quick else COUNT)
        many, one = (
            DensityBench(case, number, installation, threads, place / part, assembled)
            for case, number, part in zip(cases, (count, 1), ("many", "one"), strict=True)
        )
        report.rows += _entry_rows(many, backends, starts or (QUICK_STARTS if quick else STARTS))
        report.rows += _runtime_rows(one)
    report.checks += all_checks(report.rows)
    return report


def main(arguments: Sequence[str]) -> int:
    """The command line; the exit status is 0 where every check holds."""
    quick = f"{QUICK_ENTRIES} entries, not {COUNT}; {QUICK_STARTS} start, not {STARTS}"
    parser = benchmark_parser("density", __doc__, quick)
    parser.add_argument("--entries", type=int, default=0, metavar="N", help="of each server")
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help="starts of each side")
    parser.add_argument("--threads", type=int, default=0, help="of every engine (default: cores)")
    add_peers_option(parser)
    parser.add_argument("--model", default=SMALL, metavar="NAME", help="of the entries")
    parser.add_argument("--large", default=LARGE, metavar="NAME", help="served alone")
    chosen = parser.parse_args(arguments)
    for name in ("entries", "rounds", "threads"):
        if getattr(chosen, name) < 0:
            parser.error(f"--{name} {getattr(chosen, name)}: expected a number from 1")
    report = measured(
        parser,
        lambda: run(
            chosen.quick,
            chosen.entries,
            chosen.rounds,
            chosen.threads,
            chosen.peer_backends,
            chosen.model,
            chosen.large,
        ),
    )
    return deliver(
        report, chosen, lambda folder: plot_bars(report, folder, "memory_mb", "part", "engine")
    )


def _entry_rows(
    bench: DensityBench, backends: Sequence[Path], starts: int
) -> list[dict[str, Any]]:
    """A row for each side; one that fails once is left out from then on."""
    sides = all_sides(bench, backends)
    for side in sides:
        side.prepare()
    found: dict[str, list[dict[str, float]]] = {side.name: [] for side in sides}
    reasons: dict[str, str] = {}
    for turn in range(starts + 1):
        for side in random.Random(turn).sample(sides, len(sides)):
            if side.name in reasons:
                continue
            try:
                taken = figures_of(side)
            except _FAILURES as error:
                reasons[side.name] = one_line(str(error))
                continue
            if turn:
                found[side.name].append(taken)
    rows = []
    for side in sides:
        row: dict[str, Any] = {"part": ENTRIES, "model": bench.case.name, "engine": side.name}
        if side.name in reasons:
            rows.append({**row, REASON: reasons[side.name]})
        else:
            medians = {
                key: (sum if key in ("right", "asked") else statistics.median)(
                    each[key] for each in found[side.name]
                )
                for key in found[side.name][0]
            }
            rows.append({**row, "entries": bench.entries, **medians})
    return rows


def _runtime_rows(bench: DensityBench) -> list[dict[str, Any]]:
    """The runtime's own memory, and what the model adds to it and to a process of its own."""
    rows: list[dict[str, Any]] = []
    model = {"part": MODEL, "model": bench.case.name}
    try:
        idle, served = figures_of_runtime(bench)
    except _FAILURES as error:
        rows.append({**model, "engine": BRISK, REASON: one_line(str(error))})
    else:
        rows.append({"part": IDLE, "model": "", "engine": BRISK, **idle})
        rows.append({**model, "engine": BRISK, **served})
    try:
        alone_mb = session_bytes(bench.case.file, bench.threads) / 1e6
    except EngineUnavailableError as error:
        reason = one_line(f"onnxruntime: {error}")
        rows.append({**model, "engine": ONNXRUNTIME, REASON: reason})
    else:
        rows.append({**model, "engine": ONNXRUNTIME, "own_mb": alone_mb})
    return rows


def all_checks(rows: Rows) -> list[Check]:
    """Every expectation that the rows suffice for."""
    return [*_answers(rows), *_against_peer(rows), *_stub(rows), *_runtime(rows)]


def _answers(rows: Rows) -> list[Check]:
    checks = []
    for row in rows:
        if row["part"] == IDLE:
            continue
        name = f"{row['part']}: {row['engine']}, right answers"
        if REASON in row:
            if row["engine"] == BRISK:
                checks.append(Check(name, row[REASON], "all", False))
        elif "asked" in row:
            found = f"{row['right']} of {row['asked']}"
            checks.append(Check(name, found, "all", row["right"] == row["asked"]))
    return checks


def _find(rows: Rows, part: str, engine: str) -> Mapping[str, Any] | None:
    chosen = (row for row in rows if (row["part"], row["engine"]) == (part, engine))
    return next((row for row in chosen if REASON not in row), None)


def _against_peer(rows: Rows) -> list[Check]:
    ours, peer = _find(rows, ENTRIES, BRISK), _find(rows, ENTRIES, PEER)
    if ours is None:
        return []
    of = PEER
    if peer is None:
        if ours["model"] != "mlp" or ours["entries"] != STAND_IN_ENTRIES:
            return []  # the figures that stand in are of these
        of = f"{PEER}, as reported"
        peer = {"memory_mb": STAND_IN_MB, "ready_s": STAND_IN_READY_S}
    share = round(ours["memory_mb"] / peer["memory_mb"], 3)
    sooner = round(ours["ready_s"] / peer["ready_s"], 3)
    what = f"{ours['entries']} {ours['model']}"
    return [
        Check(f"{what}: memory over {of}", share, f"<= {MEMORY_SHARE}", share <= MEMORY_SHARE),
        Check(f"{what}: exec to ready over {of}", sooner, "<= 1.0", sooner <= 1.0),
    ]


def _stub(rows: Rows) -> list[Check]:
    ours = _find(rows, ENTRIES, BRISK)
    if ours is None:
        return []
    found = round(ours["stub_mb"], 2)
    name = "private memory of a stub, median, MB"
    return [Check(name, found, f"<= {STUB_MB:g}", found <= STUB_MB)]


def _runtime(rows: Rows) -> list[Check]:
    checks = []
    idle = _find(rows, IDLE, BRISK)
    if idle is not None:
        found = round(idle["pss_mb"], 1)
        name = "a runtime without a model, all its processes, MB"
        checks.append(Check(name, found, f"<= {IDLE_MB:g}", found <= IDLE_MB))
    ours, theirs = _find(rows, MODEL, BRISK), _find(rows, MODEL, ONNXRUNTIME)
    if ours is not None and theirs is not None:
        share = round(ours["own_mb"] / theirs["own_mb"], 3)
        name = f"{ours['model']}: private memory over ONNX Runtime's default in process"
        checks.append(Check(name, share, f"<= {MODEL_SHARE}", share <= MODEL_SHARE))
    return checks
