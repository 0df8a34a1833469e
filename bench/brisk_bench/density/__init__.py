"""`brisk bench density`: many small models on one server.

One server after the other, each with N entries of the same model, a copy of the file each, and
then each with N different networks: Brisk, the Python backend with ONNX Runtime, and other
backends from a folder that `--peer-backends` names. A client waits for all of them, asks each
once, and again; then the memory of all the server's processes is read. Beside it, what Brisk's
runtime holds without a model, and what one larger model adds to it.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from brisk_bench.density.memory import session_bytes
from brisk_bench.density.networks import write_networks
from brisk_bench.density.servers import DensitySide, figures_of, figures_of_runtime
from brisk_bench.engines.case import case_of
from brisk_bench.engines.process import EngineUnavailableError
from brisk_bench.harness.command_line import (
    UnusableArgumentError,
    bars,
    benchmark_parser,
    run_command,
)
from brisk_bench.harness.machine import new_report
from brisk_bench.harness.peer_backends import CPP, ONNXRUNTIME, add_peers_option, peer_backends
from brisk_bench.harness.report import REASON, Check, Report, check_limit
from brisk_bench.harness.sampling import in_rounds, one_line
from brisk_bench.harness.served_server import FAILURES
from brisk_bench.start.sides import PYTHON, StartBench, StartSide

BRISK = "brisk"
SMALL, LARGE = "mlp", "resnet50"
QUICK_ENTRIES, COUNT = 10, 40
QUICK_STARTS, STARTS = 1, 3

COPIES, DIFFERENT, IDLE, MODEL = "copies", "different networks", "idle runtime", "one model"
"""Parts of the report."""

MEMORY_SHARE, READY, SECOND_ROUND = 0.6, 1.0, 1.25
"""The most of Brisk's over a peer's: memory; time from ``exec`` until all entries are ready;
latency of an entry that is asked again (over the Python backend only)."""

STUB_MB, IDLE_MB, MODEL_SHARE = 8.0, 90.0, 0.2

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
    "different networks: perceptrons, convolutional networks and encoders, structure and size of "
    "each drawn, the same in every run",
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
    """Measure servers of ``entries`` times ``model`` and of as many different networks, and a
    runtime without a model and with ``large``.

    ``model``, ``large``: samples by name, or ONNX files. ``entries``, ``rounds``, ``threads``: 0
    for the default, which is all cores for ``threads``. Raises UnusableArgumentError before
    anything is measured.
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
        networks = write_networks(Path(folder) / "networks", entries)
        for part, cases in (
            (COPIES, {f"{small.name}_{number}": small for number in range(entries)}),
            (DIFFERENT, {file.stem: case_of(str(file)) for file in networks}),
        ):
            many = StartBench(
                next(iter(cases.values())), threads, Path(folder) / part.replace(" ", "-")
            )
            sides = [DensitySide(each, cases) for each in _served(many, backends)]
            named = {"part": part, "model": small.name if part == COPIES else ""}
            report.rows += _entry_rows(sides, rounds or (QUICK_STARTS if quick else STARTS), named)
        alone = StartSide(StartBench(one, threads, Path(folder) / "one"), BRISK)
        report.rows += _runtime_rows(DensitySide(alone, {one.name: one}))
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


def _served(bench: StartBench, peers: Sequence[Path]) -> list[StartSide]:
    return [
        StartSide(bench, BRISK),
        StartSide(bench, PYTHON, "python"),
        *(StartSide(bench, f"{peer.name} backend", peer.name, peer=peer) for peer in peers),
    ]


def _entry_rows(
    sides: Sequence[DensitySide], starts: int, named: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return a row for each side, ``named`` first; a side that fails once is then left out."""
    for side in sides:
        side.prepare()
    figures, reasons = in_rounds(sides, starts, figures_of, uncounted=1, failures=FAILURES)
    rows = []
    for side in sides:
        row: dict[str, Any] = {**named, "engine": side.served.name}
        if side in reasons:
            rows.append({**row, REASON: reasons[side]})
            continue
        medians = {
            key: (sum if key in ("right", "asked") else statistics.median)(
                each[key] for each in figures[side]
            )
            for key in figures[side][0]
        }
        rows.append({**row, "entries": len(side.entries), **medians})
    return rows


def _runtime_rows(side: DensitySide) -> list[dict[str, Any]]:
    """Return the runtime's own memory, and what the model adds to it and to its own process."""
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
    """Return every check that the rows suffice for."""
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
            tally = f"{row['right']} of {row['asked']}"
            checks.append(Check(name, tally, "all", row["right"] == row["asked"]))
    return checks


def _find(rows: Rows, part: str, engine: str) -> Mapping[str, Any] | None:
    chosen = (row for row in rows if (row["part"], row["engine"]) == (part, engine))
    return next((row for row in chosen if REASON not in row), None)


def _against_peer(rows: Rows) -> list[Check]:
    checks = []
    for part in (COPIES, DIFFERENT):
        ours = _find(rows, part, BRISK)
        for engine in (PYTHON, CPP):
            peer = _find(rows, part, engine)
            if ours is None or peer is None:
                continue
            of = f"copies of {ours['model']}" if part == COPIES else part
            limits = [
                ("memory", "memory_mb", MEMORY_SHARE),
                ("exec to ready", "ready_s", READY),
            ]
            if engine == PYTHON:
                limits.append(("second round's latency", "second_round_ms", SECOND_ROUND))
            for what, key, limit in limits:
                text = f"{ours['entries']} {of}: {what} over {engine}"
                checks.append(check_limit(text, ours[key] / peer[key], "<=", limit, 3))
    return checks


def _of_brisk(rows: Rows) -> list[Check]:
    checks = []
    for part in (COPIES, DIFFERENT):
        if (ours := _find(rows, part, BRISK)) is not None:
            name = f"{part}: private memory of a stub, median, MB"
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
