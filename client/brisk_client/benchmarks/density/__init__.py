"""`brisk bench density`: many small models on one server.

One server after the other, each with N entries of the same model, a copy of the file each: Brisk,
the Python backend with ONNX Runtime, and other backends from a folder that `--peer-backends`
names. A client waits for all of them, asks each once, and again; then the memory of all the
server's processes is read. Beside it, what Brisk's runtime holds without a model, and what one
larger model adds to it.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from brisk_client.benchmarks.density.memory import session_bytes
from brisk_client.benchmarks.density.servers import (
    DensitySide,
    figures_of,
    figures_of_runtime,
)
from brisk_client.benchmarks.engines.process import EngineUnavailableError
from brisk_client.benchmarks.harness.command_line import (
    UnusableArgumentError,
    bars,
    benchmark_parser,
    run_command,
)
from brisk_client.benchmarks.harness.machine import new_report
from brisk_client.benchmarks.harness.peer_backends import (
    ONNXRUNTIME,
    add_peers_option,
    peer_backends,
)
from brisk_client.benchmarks.harness.sampling import in_rounds, one_line
from brisk_client.benchmarks.harness.served_server import FAILURES
from brisk_client.benchmarks.start.case import case_of
from brisk_client.benchmarks.start.sides import PYTHON, StartBench, StartSide
from brisk_client.report import REASON, Check, Report, check_limit

BRISK = "brisk"
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
    rounds: int = 0,
    threads: int = 0,
    peers: Path | None = None,
    model: str = SMALL,
    large: str = LARGE,
) -> Report:
    """Measure servers of ``entries`` times ``model``, and a runtime without a model and with
    ``large``: samples by name, or ONNX files.

    ``entries``, ``rounds``, ``threads``: 0: the usual; all cores. Raises UnusableArgumentError
    before anything is measured.
    """
    for name, number in (("entries", entries), ("rounds", rounds), ("threads", threads)):
        if number < 0:
            raise UnusableArgumentError(f"--{name} {number}: expected a number from 1")
    threads = threads or len(os.sched_getaffinity(0))
    entries = entries or (QUICK_ENTRIES if quick else COUNT)
    backends = peer_backends(peers)
    small, one = (case_of(each) for each in (model, large))
    versions = ("onnxruntime", "nvidia-pytriton", "numpy")
    report = new_report("density", versions, NOTES, threads=threads)
    with tempfile.TemporaryDirectory(prefix="brisk-density-") as folder:
        many = StartBench(small, threads, Path(folder) / "many")
        served = [
            StartSide(many, BRISK),
            StartSide(many, PYTHON, "python"),
            *(StartSide(many, f"{peer.name} backend", peer.name, peer=peer) for peer in backends),
        ]
        sides = [DensitySide(each, entries) for each in served]
        report.rows += _entry_rows(sides, rounds or (QUICK_STARTS if quick else STARTS))
        alone = StartSide(StartBench(one, threads, Path(folder) / "one"), BRISK)
        report.rows += _runtime_rows(DensitySide(alone, 1))
    report.checks += all_checks(report.rows)
    return report


def main(arguments: Sequence[str]) -> int:
    quick = f"{QUICK_ENTRIES} entries, not {COUNT}; {QUICK_STARTS} start, not {STARTS}"
    parser = benchmark_parser("density", __doc__, quick)
    parser.add_argument("--entries", type=int, default=0, metavar="N", help="of each server")
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help="starts of each side")
    parser.add_argument("--threads", type=int, default=0, help="of every engine (default: cores)")
    add_peers_option(parser)
    parser.add_argument("--model", default=SMALL, metavar="NAME", help="of the entries")
    parser.add_argument("--large", default=LARGE, metavar="NAME", help="served alone")
    return run_command(parser, arguments, run, bars("memory_mb", "part", "engine"))


def _entry_rows(sides: Sequence[DensitySide], starts: int) -> list[dict[str, Any]]:
    """A row for each side; one that fails once is left out from then on."""
    for side in sides:
        side.prepare()
    found, reasons = in_rounds(sides, starts, figures_of, uncounted=1, failures=FAILURES)
    rows = []
    for side in sides:
        model = side.served.bench.case.name
        row: dict[str, Any] = {"part": ENTRIES, "model": model, "engine": side.served.name}
        if side in reasons:
            rows.append({**row, REASON: reasons[side]})
            continue
        medians = {
            key: (sum if key in ("right", "asked") else statistics.median)(
                each[key] for each in found[side]
            )
            for key in found[side][0]
        }
        rows.append({**row, "entries": side.entries, **medians})
    return rows


def _runtime_rows(side: DensitySide) -> list[dict[str, Any]]:
    """The runtime's own memory, and what the model adds to it and to a process of its own."""
    rows: list[dict[str, Any]] = []
    bench = side.served.bench
    model = {"part": MODEL, "model": bench.case.name}
    try:
        idle, served = figures_of_runtime(side)
    except FAILURES as error:
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
    return [*_answers(rows), *_against_peer(rows), *_of_brisk(rows)]


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
    what = f"{ours['entries']} {ours['model']}"
    share, sooner = (ours[key] / peer[key] for key in ("memory_mb", "ready_s"))
    return [
        check_limit(f"{what}: memory over {of}", share, "<=", MEMORY_SHARE, 3),
        check_limit(f"{what}: exec to ready over {of}", sooner, "<=", 1.0, 3),
    ]


def _of_brisk(rows: Rows) -> list[Check]:
    checks = []
    if (ours := _find(rows, ENTRIES, BRISK)) is not None:
        name = "private memory of a stub, median, MB"
        checks.append(check_limit(name, ours["stub_mb"], "<=", STUB_MB, 2))
    if (idle := _find(rows, IDLE, BRISK)) is not None:
        name = "a runtime without a model, all its processes, MB"
        checks.append(check_limit(name, idle["pss_mb"], "<=", IDLE_MB, 1))
    ours, theirs = _find(rows, MODEL, BRISK), _find(rows, MODEL, ONNXRUNTIME)
    if ours is not None and theirs is not None:
        name = f"{ours['model']}: private memory over ONNX Runtime's default in process"
        share = ours["own_mb"] / theirs["own_mb"]
        checks.append(check_limit(name, share, "<=", MODEL_SHARE, 3))
    return checks
