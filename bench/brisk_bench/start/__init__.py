"""`brisk bench start`: from the server's `exec` to its first right answer.

One server after the other, each with one model and nothing else: Brisk for the first time (an
empty cache directory, no artefact) and prepared, the Python backend with ONNX Runtime, and other
backends from a folder that `--peer-backends` names. A client on the same machine tries to connect
every millisecond and asks as soon as the model is ready. Brisk's runtime is started by its first
model, so its start is part of the time, and is gone before the next server starts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonclient.http import InferenceServerClient

from brisk_bench.engines.agreement import agree_by_name
from brisk_bench.engines.case import Arrays, case_of
from brisk_bench.engines.model_inputs import add_input_option, read_given
from brisk_bench.engines.process import EngineUnavailableError
from brisk_bench.harness.command_line import benchmark_parser, check_known, listed, run_command
from brisk_bench.harness.machine import new_report
from brisk_bench.harness.peer_backends import CPP, add_peers_option, peer_backends
from brisk_bench.harness.report import REASON, Check, Report, check_limit, plot_bars
from brisk_bench.harness.sampling import in_rounds, median_ratio, summarise
from brisk_bench.harness.served_server import FAILURES, BenchmarkServer, runtime_folder
from brisk_bench.start.sides import (
    ENTRY,
    FIRST,
    PREPARED,
    PYTHON,
    Configuration,
    StartBench,
    StartSide,
    chosen_sides,
)
from brisk_client.inference import InferenceClient, Transport

MODEL = "resnet50"

QUICK_ROUNDS, ROUNDS = 3, 7

POLL_S = 0.001
_CALL_TIMEOUT_S = 120.0

Rows = Sequence[Mapping[str, Any]]

STAND_IN = 0.9
"""The share of the Python backend's time with ONNX Runtime that stands in for Triton's own backend
where this is not there."""

FIRST_LIMIT, PREPARED_LIMIT = 1.3, 1.0
"""The most of Brisk's time from ``exec`` over Triton's own backend, without and with artefact."""

PYTHON_LIMIT = 0.7
"""The most of Brisk's time with an artefact over the Python backend's with ONNX Runtime."""

PEER_LIMIT = 1.0
"""The most of Brisk's time with an artefact over that of the soonest peer with a model prepared by
itself."""

NOTES = (
    "first: from the exec of tritonserver to the first answer at a client that tries to connect "
    "every millisecond; ready: to the model's being ready; medians, spread: interquartile range",
    "sides in turns, each round in an order of its own; one round before, not counted, fills the "
    "page cache for all",
    "brisk first: no artefact and an empty cache directory at each start; brisk prepared: after "
    "`brisk prepare`; Brisk's runtime is started by each server anew and is gone before the next",
    "prepared peers: the model optimised and saved with external weights by ONNX Runtime, loaded "
    "with optimisation off, with and without packing weights anew",
    "complete: the whole configuration, --disable-auto-complete-config; complete, completed "
    "again: the same on a server that completes what it loads, as it does by default; platform "
    "alone: one line",
    "over peer: time over that of the soonest peer of the same kind (prepared or not) with a "
    "complete entry, median over rounds",
)

VERSIONS = ("torch", "onnxruntime", "nvidia-pytriton", "onnx", "numpy")

ENTRIES = {each.name.lower(): each for each in Configuration}


@dataclass(frozen=True, slots=True)
class StartTimes:
    """The times of one start, in seconds from the server's ``exec``, and its answer.

    ``ready_s``: to the model's being ready.
    ``first_s``: to the first answer.
    ``outputs``: of that answer.
    """

    ready_s: float
    first_s: float
    outputs: Arrays


def run(
    quick: bool = False,
    model: Sequence[str] = (),
    inputs: Sequence[str] = (),
    threads: int = 0,
    rounds: int = 0,
    peers: Path | None = None,
    entries: Sequence[str] = tuple(ENTRIES),
    side: Sequence[str] = (),
) -> Report:
    """Measure the starts of servers with each of ``model``: samples by name, or ONNX files.

    ``threads``, ``rounds``: 0: all usable cores, the default. ``entries``: of ENTRIES. ``side``:
    names; none: all. Raises UnusableArgumentError before anything is measured.
    """
    threads = threads or len(os.sched_getaffinity(0))
    check_known("entries", entries, ENTRIES)
    report = new_report("start", VERSIONS, NOTES, threads=threads)
    backends = peer_backends(peers)
    given_inputs = read_given(inputs)
    configurations = [ENTRIES[name] for name in entries]
    cases = [case_of(each, given_inputs) for each in model or (MODEL,)]
    rounds = rounds or (QUICK_ROUNDS if quick else ROUNDS)
    with tempfile.TemporaryDirectory(prefix="brisk-start-") as folder:
        for number, case in enumerate(cases):
            bench = StartBench(case, threads, Path(folder) / str(number))
            sides = chosen_sides(bench, backends, side)
            report.rows += _rows(bench, sides, configurations, rounds)
            report.notes.append(f"{case.name}: the right answer is {case.source}")
    report.checks += all_checks(report.rows)
    return report


def main(arguments: Sequence[str]) -> int:
    parser = benchmark_parser("start", __doc__, f"{QUICK_ROUNDS} rounds, not {ROUNDS}")
    parser.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME",
        help=f"a sample, or an ONNX file ({MODEL})",
    )
    add_input_option(parser)
    parser.add_argument("--threads", type=int, default=0, help="of every engine (default: cores)")
    parser.add_argument("--rounds", type=int, default=0, metavar="N", help="of all sides")
    add_peers_option(parser)
    parser.add_argument(
        "--entries",
        type=listed,
        default=tuple(ENTRIES),
        metavar="A,B",
        help=f"how much of the entries is written ({','.join(ENTRIES)})",
    )
    parser.add_argument(
        "--side", action="append", default=[], metavar="NAME", help=f"{FIRST}, {PYTHON}, …"
    )
    return run_command(parser, arguments, run, _plot)


def _plot(report: Report, folder: Path) -> None:
    rows = [{**row, "side": f"{row['engine']}, {row['entry']}"} for row in report.rows]
    drawn = dataclasses.replace(report, rows=rows)
    plot_bars(drawn, folder, "first_ms", "model", "side", "spread_ms")


def _rows(
    bench: StartBench,
    sides: Sequence[StartSide],
    configurations: Sequence[Configuration],
    rounds: int,
) -> list[dict[str, Any]]:
    """Return a row for each side and configuration, times in ms."""
    failed: dict[str, str] = {}
    for side in sides:
        try:
            side.prepare()
        except EngineUnavailableError as error:
            failed[side.name] = str(error)
    pairs = [
        (side, configuration)
        for configuration in configurations
        for side in sides
        if configuration in side.configurations
    ]

    def start(pair: tuple[StartSide, Configuration]) -> StartTimes:
        side, configuration = pair
        if side.name in failed:
            raise EngineUnavailableError(failed[side.name])
        return _start(side, configuration)

    failures = (*FAILURES, EngineUnavailableError)
    starts, reasons = in_rounds(pairs, rounds, start, uncounted=1, failures=failures)
    rows: list[dict[str, Any]] = []
    first_s = {}
    for pair in pairs:
        side, configuration = pair
        named = {"model": bench.case.name, "engine": side.name, "entry": configuration.value}
        if pair in reasons:
            rows.append({**named, REASON: reasons[pair]})
            continue
        first_s[side.name, configuration.value] = [each.first_s for each in starts[pair]]
        first = summarise([each.first_s for each in starts[pair]])
        rows.append(
            {
                **named,
                "first_ms": first.median * 1e3,
                "spread_ms": first.spread * 1e3,
                "least_ms": first.least * 1e3,
                "ready_ms": summarise([each.ready_s for each in starts[pair]]).median * 1e3,
                "samples": len(starts[pair]),
                "right": sum(
                    agree_by_name(each.outputs, bench.case.expected) for each in starts[pair]
                ),
            }
        )
    for row in rows:
        peer = soonest(rows, row["model"], prepared="prepared" in row["engine"])
        if peer is not None and REASON not in row:
            ours, theirs = (first_s[each["engine"], each["entry"]] for each in (row, peer))
            row["over_peer"] = median_ratio(list(zip(ours, theirs, strict=True)))
    return rows


def _start(side: StartSide, configuration: Configuration) -> StartTimes:
    """Start a server whose runtime is new, ask it once, end it.

    Nothing of it is left afterwards: no process that has its runtime's directory in its
    environment. Raises ServerFailedError if it does not become ready, and InferenceServerException
    if it answers with an error.
    """
    if side.name != PREPARED:
        side.write(configuration)
    with runtime_folder() as runtime, side.starting(configuration, runtime) as server:
        return _ask(server, side.bench.case.inputs)


def _ask(server: BenchmarkServer, inputs: Arrays) -> StartTimes:
    """Ask as soon as the model is ready; a client that is made earlier would wait longer."""
    _wait_for_port(server)
    with (
        InferenceClient(server.http, Transport.HTTP, _CALL_TIMEOUT_S) as client,
        contextlib.closing(InferenceServerClient(server.http)) as control,
    ):
        while not control.is_model_ready(ENTRY):
            server.give_up()
            time.sleep(POLL_S)
        ready_s = time.perf_counter()
        outputs = client.infer(ENTRY, inputs)
        answered_s = time.perf_counter()
    return StartTimes(ready_s - server.begin_s, answered_s - server.begin_s, outputs)


def _wait_for_port(server: BenchmarkServer) -> None:
    host, _, port = server.http.rpartition(":")
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=_CALL_TIMEOUT_S).close()
        except ConnectionRefusedError:
            server.give_up()
            time.sleep(POLL_S)
        else:
            return


def all_checks(rows: Rows) -> list[Check]:
    """Return every check that the rows suffice for."""
    return [*_right(rows), *_against_peers(rows)]


def soonest(rows: Rows, model: str, *, prepared: bool) -> Mapping[str, Any] | None:
    """Return the complete entry of a peer, prepared or not, whose first answer comes first."""
    candidates = [
        row
        for row in rows
        if row["model"] == model
        and "first_ms" in row
        and row["entry"] == Configuration.COMPLETE.value
        and row["engine"] not in (FIRST, PREPARED)
        and ("prepared" in row["engine"]) == prepared
    ]
    return min(candidates, key=lambda row: float(row["first_ms"]), default=None)


def _right(rows: Rows) -> list[Check]:
    checks = []
    for row in rows:
        named = f"{row['model']}: {row['engine']}, {row['entry']}"
        if REASON in row:
            if row["engine"] in (FIRST, PREPARED):
                checks.append(Check(f"{named}: answers", row[REASON], "an answer", False))
            continue
        tally = f"{row['right']} of {row['samples']}"
        checks.append(
            Check(f"{named}: right answers", tally, "all", row["right"] == row["samples"])
        )
    return checks


def _against_peers(rows: Rows) -> list[Check]:
    checks = []
    for model in dict.fromkeys(row["model"] for row in rows):
        times = {
            row["engine"]: float(row["first_ms"])
            for row in rows
            if row["model"] == model
            and row["entry"] == Configuration.COMPLETE.value
            and "first_ms" in row
        }
        limits = [(PREPARED, PYTHON, times.get(PYTHON), PYTHON_LIMIT)]
        named, own_ms = CPP, times.get(CPP)
        if own_ms is None and PYTHON in times:
            named, own_ms = f"{STAND_IN} x {PYTHON}", STAND_IN * times[PYTHON]
        limits += [(FIRST, named, own_ms, FIRST_LIMIT), (PREPARED, named, own_ms, PREPARED_LIMIT)]
        peer = soonest(rows, model, prepared=True)
        if peer is not None:
            limits.append((PREPARED, peer["engine"], float(peer["first_ms"]), PEER_LIMIT))
        for ours, theirs, peer_ms, limit in limits:
            if ours in times and peer_ms is not None:
                text = f"{model}: {ours} over {theirs}, exec to first answer"
                checks.append(check_limit(text, times[ours] / peer_ms, "<=", limit, 3))
    return checks
