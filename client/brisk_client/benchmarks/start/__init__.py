"""`brisk bench start`: from the server's `exec` to its first right answer.

One server after the other, each with one model and nothing else: Brisk for the first time (an
empty cache directory, no artefact) and prepared, the Python backend with ONNX Runtime, and other
backends from a folder that `--peer-backends` names. A client on the same machine tries to connect
every millisecond and asks as soon as the model is ready. Brisk's runtime is started by its first
model, so its start is part of the time, and is gone before the next server starts.
"""

from __future__ import annotations

import dataclasses
import os
import random
import tempfile
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tritonclient.utils import InferenceServerException

from brisk.errors import BriskError
from brisk.triton.backend_directory import assemble
from brisk.triton.locate import locate_server
from brisk_client.benchmarks.engines.agreement import agree_by_name
from brisk_client.benchmarks.engines.model_inputs import (
    NOTHING_GIVEN,
    GivenInputs,
    add_input_option,
    read_given,
)
from brisk_client.benchmarks.engines.process import EngineUnavailableError, one_line
from brisk_client.benchmarks.harness.command_line import benchmark_parser, deliver, measured
from brisk_client.benchmarks.harness.machine import new_report
from brisk_client.benchmarks.harness.peer_backends import (
    ONNXRUNTIME,
    add_peers_option,
    peer_backends,
)
from brisk_client.benchmarks.harness.sampling import median_ratio, summarise
from brisk_client.benchmarks.start.case import case_of
from brisk_client.benchmarks.start.server_start import ServerCommand, StartTimes, time_start
from brisk_client.benchmarks.start.sides import (
    ENTRY,
    FIRST,
    PREPARED,
    PYTHON,
    Configuration,
    StartBench,
    StartSide,
    chosen_sides,
)
from brisk_client.inference import Transport
from brisk_client.report import Check, Report, plot_bars

MODEL = "resnet50"

QUICK_ROUNDS, ROUNDS = 3, 7

Rows = Sequence[Mapping[str, Any]]

CPP = f"{ONNXRUNTIME} backend"
"""Triton's own, in C++."""

STAND_IN = 0.9
"""Of the Python backend's time with ONNX Runtime: Triton's own, where it is not there."""

FIRST_LIMIT, PREPARED_LIMIT = 1.3, 1.0
"""Brisk's time from ``exec`` over that of Triton's own backend, without and with an artefact."""

PYTHON_LIMIT = 0.7
"""With one over that of the Python backend with ONNX Runtime."""

PEER_LIMIT = 1.0
"""With one over that of whichever peer answers soonest from what it has prepared itself."""

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


def run(
    quick: bool = False,
    models: Sequence[str] = (MODEL,),
    threads: int = 0,
    rounds: int = 0,
    peers: Path | None = None,
    transport: Transport = Transport.HTTP,
    configurations: Sequence[Configuration] = tuple(Configuration),
    sides: Sequence[str] = (),
    given: GivenInputs = NOTHING_GIVEN,
) -> Report:
    """Measure the starts of servers with each of ``models``: samples by name, or ONNX files.

    ``threads``, ``rounds``: 0: all usable cores, the usual. ``peers``: a folder of backends.
    ``sides``: names; none: all. Raises UnusableArgumentError before anything is measured.
    """
    threads = threads or len(os.sched_getaffinity(0))
    report = new_report("start", VERSIONS, NOTES, threads=threads, transport=transport.value)
    backends = peer_backends(peers)
    cases = [case_of(model, given) for model in models]
    installation = locate_server()
    with tempfile.TemporaryDirectory(prefix="brisk-start-") as folder:
        assembled = assemble(Path(folder) / "backends", installation)
        for number, case in enumerate(cases):
            place = Path(folder) / str(number)
            place.mkdir()
            bench = StartBench(case, installation, threads, place, assembled)
            chosen = chosen_sides(bench, backends, sides)
            starts = _Starts(bench, chosen, configurations, transport)
            starts.measure(rounds or (QUICK_ROUNDS if quick else ROUNDS))
            report.rows += starts.rows()
            report.notes.append(f"{case.name}: the right answer is {case.source}")
    report.checks += all_checks(report.rows)
    return report


def main(arguments: Sequence[str]) -> int:
    """The command line; the exit status is 0 where every check holds."""
    known = {each.name.lower(): each for each in Configuration}
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
        default=",".join(known),
        metavar="A,B",
        help="how much of the entries is written (%(default)s)",
    )
    parser.add_argument(
        "--side", action="append", default=[], metavar="NAME", help=f"{FIRST}, {PYTHON}, …"
    )
    parser.add_argument("--grpc", action="store_true", help="poll and ask over gRPC, not HTTP")
    chosen = parser.parse_args(arguments)
    names = [name for name in chosen.entries.split(",") if name]
    for name in names:
        if name not in known:
            parser.error(f"there are no entries '{name}'; there are: {', '.join(known)}")
    report = measured(
        parser,
        lambda: run(
            chosen.quick,
            chosen.model or (MODEL,),
            chosen.threads,
            chosen.rounds,
            chosen.peer_backends,
            Transport.GRPC if chosen.grpc else Transport.HTTP,
            [known[name] for name in names],
            chosen.side,
            read_given(chosen.input),
        ),
    )
    return deliver(report, chosen, lambda folder: _plot(report, folder))


def _plot(report: Report, folder: Path) -> None:
    rows = [{**row, "side": f"{row['engine']}, {row['entry']}"} for row in report.rows]
    drawn = dataclasses.replace(report, rows=rows)
    plot_bars(drawn, folder, "first_ms", "model", "side", "spread_ms")


class _Starts:
    """The starts of one model's servers, by side and configuration."""

    def __init__(
        self,
        bench: StartBench,
        sides: Sequence[StartSide],
        configurations: Sequence[Configuration],
        transport: Transport,
    ) -> None:
        self._bench = bench
        self._transport = transport
        self._pairs = [
            (side, configuration)
            for configuration in configurations
            for side in sides
            if configuration in side.configurations
        ]
        self._taken: dict[tuple[str, Configuration], list[StartTimes]] = {}
        self._reasons: dict[tuple[str, Configuration], str] = {}

    def measure(self, rounds: int) -> None:
        """Prepare the sides, then ``rounds`` rounds and the one before; a side that fails once is
        left out from then on."""
        failed: dict[str, str] = {}
        for side in dict.fromkeys(side for side, _ in self._pairs):
            try:
                side.prepare()
            except EngineUnavailableError as error:
                failed[side.name] = str(error)
        for turn in range(rounds + 1):
            for side, configuration in random.Random(turn).sample(self._pairs, len(self._pairs)):
                key = side.name, configuration
                if side.name in failed:
                    self._reasons[key] = failed[side.name]
                if key in self._reasons:
                    continue
                try:
                    times = self._start(side, configuration)
                except (BriskError, InferenceServerException, HTTPException, OSError) as error:
                    self._reasons[key] = one_line(str(error))
                    continue
                if turn:
                    self._taken.setdefault(key, []).append(times)

    def _start(self, side: StartSide, configuration: Configuration) -> StartTimes:
        repository = side.repository(configuration)
        command = ServerCommand(
            self._bench.installation,
            repository,
            side.backends,
            self._bench.threads,
            side.environment(configuration),
            configuration.options,
        )
        return time_start(command, ENTRY, self._bench.case.inputs, self._transport)

    def rows(self) -> list[dict[str, Any]]:
        """One for each side and configuration, times in ms."""
        rows = [self._row(side.name, configuration) for side, configuration in self._pairs]
        for row in rows:
            if "first_ms" in row:
                row |= self._over_peer(row, rows)
        return rows

    def _row(self, side: str, configuration: Configuration) -> dict[str, Any]:
        case, key = self._bench.case, (side, configuration)
        row = {"model": case.name, "engine": side, "entry": configuration.value}
        if key in self._reasons:
            return {**row, "reason": self._reasons[key]}
        taken = self._taken[key]
        first = summarise([times.first_s for times in taken])
        return {
            **row,
            "first_ms": first.median * 1e3,
            "spread_ms": first.spread * 1e3,
            "least_ms": first.least * 1e3,
            "ready_ms": summarise([times.ready_s for times in taken]).median * 1e3,
            "samples": len(taken),
            "right": sum(agree_by_name(times.outputs, case.expected) for times in taken),
        }

    def _over_peer(
        self, row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
    ) -> dict[str, float]:
        peer = soonest(rows, row["model"], prepared="prepared" in row["engine"])
        if peer is None:
            return {}
        ours = self._taken[row["engine"], Configuration(row["entry"])]
        theirs = self._taken[peer["engine"], Configuration.COMPLETE]
        pairs = [(one.first_s, other.first_s) for one, other in zip(ours, theirs, strict=False)]
        return {"over_peer": round(median_ratio(pairs), 3)}


def all_checks(rows: Rows) -> list[Check]:
    """Every expectation that the rows suffice for."""
    return [*_right(rows), *_against_peers(rows)]


def soonest(rows: Rows, model: str, *, prepared: bool) -> Mapping[str, Any] | None:
    """The complete entry of a peer, prepared or not, whose first answer comes first."""
    found = [
        row
        for row in rows
        if row["model"] == model
        and "first_ms" in row
        and row["entry"] == Configuration.COMPLETE.value
        and row["engine"] not in (FIRST, PREPARED)
        and ("prepared" in row["engine"]) == prepared
    ]
    return min(found, key=lambda row: float(row["first_ms"]), default=None)


def _right(rows: Rows) -> list[Check]:
    checks = []
    for row in rows:
        named = f"{row['model']}: {row['engine']}, {row['entry']}"
        if "reason" in row:
            if row["engine"] in (FIRST, PREPARED):
                checks.append(Check(f"{named}: answers", row["reason"], "an answer", False))
            continue
        found = f"{row['right']} of {row['samples']}"
        checks.append(
            Check(f"{named}: right answers", found, "all", row["right"] == row["samples"])
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
                ratio = round(times[ours] / peer_ms, 3)
                text = f"{model}: {ours} over {theirs}, exec to first answer"
                checks.append(Check(text, ratio, f"<= {limit}", ratio <= limit))
    return checks
