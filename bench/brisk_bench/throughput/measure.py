"""Runs of `brisk bench throughput`: sides interleaved, their rates, latencies, processor time."""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from brisk_bench.density.memory import memory_of
from brisk_bench.engines.agreement import agree_by_name
from brisk_bench.engines.case import Case
from brisk_bench.harness.processes import KINDS
from brisk_bench.harness.report import Check, Report
from brisk_bench.harness.sampling import in_rounds
from brisk_bench.harness.served_server import WITHOUT_COMPLETION, BenchmarkServer, benchmark_server
from brisk_bench.harness.surroundings import wait_until_settled
from brisk_bench.harness.tails import quantile, tail_or_shortage
from brisk_bench.throughput.load import GRPC, HTTP, Clients, Load, Measured, Target
from brisk_bench.throughput.sides import (
    BRISK,
    CPP,
    JOINED,
    PYTHON,
    PeerSetting,
    grpc_request,
    http_request,
    settings_of,
    takes_rows,
    write_entry,
)
from brisk_client.inference import InferenceClient, Transport

WARM_UP_S = 0.5
TRIAL_S, TRIAL_CLIENTS = 1.5, 4

OPEN_LOOP = (0.5, 0.8, 0.95)
OPEN_CLIENTS = 16
"""Clients of an open loop, at the shares OPEN_LOOP of the rate that the same side reached with as
many."""

CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured.

    ``before_s``: how long each side is asked before its rounds, by TRIAL_CLIENTS, uncounted.
    """

    transports: Sequence[str]
    counts: Sequence[int]
    rounds: int
    seconds: float
    before_s: float
    open_loop: bool


@dataclass(slots=True)
class AskedSide:
    """A side with its running server.

    ``names``: of its entries, in the order of the cases.
    """

    name: str
    setting: PeerSetting
    server: BenchmarkServer
    names: Sequence[str]

    def target(self, transport: str) -> Target:
        address = self.server.grpc if transport == GRPC else self.server.http
        return Target(transport, address, [f"{transport} {name}" for name in self.names])


@dataclass(slots=True)
class Found:
    """The results of one side under one load, a value for each round."""

    per_s: list[float] = field(default_factory=list)
    latency_s: list[np.ndarray] = field(default_factory=list)
    us: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    errors: list[str] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        everything = np.concatenate(self.latency_s)
        row: dict[str, Any] = {
            "per_s": statistics.median(self.per_s),
            "least_per_s": min(self.per_s),
            "most_per_s": max(self.per_s),
            "p50_ms": 1e3 * statistics.median(quantile(list(one), 0.5) for one in self.latency_s),
            "p99_ms": tail_or_shortage(list(everything), 0.99, 1e3),
        }
        for kind, values in self.us.items():
            row[f"{kind}_us"] = statistics.median(values)
        row["us"] = statistics.median(map(sum, zip(*self.us.values(), strict=True)))
        return row


@dataclass(frozen=True, slots=True)
class EntriesBench:
    """Measures a model, or several that are asked in proportion to ``weights``, on all sides.

    ``name``: of the model in the rows.
    ``crowd``: the clients.
    ``peer``: the folder of Triton's own backend.
    ``batching``: entries have ``dynamic_batching``.
    """

    report: Report
    name: str
    cases: Sequence[Case]
    weights: Sequence[float]
    effort: Effort
    crowd: Clients
    peer: Path | None
    batching: bool

    @property
    def entries(self) -> dict[str, Case]:
        """The cases by the names of their entries."""
        return {f"entry_{number}": case for number, case in enumerate(self.cases)}

    def measure(self) -> None:
        """Add the rows."""
        self.crowd.give(_requests(self.entries))
        sides = [BRISK, PYTHON, *([JOINED] if self.batching else [])]
        sides += [CPP] if self.peer is not None else []
        with contextlib.ExitStack() as stack:
            served = [
                stack.enter_context(self._served(side, self._best_setting(side))) for side in sides
            ]
            self._check_answers(served)
            for each in served:
                before = self._load(each, GRPC, self.effort.before_s)
                self.crowd.measure(before, min(TRIAL_CLIENTS, max(self.effort.counts)))
            for transport in self.effort.transports:
                for count in self.effort.counts:
                    reached = self._in_turns(served, transport, count, None)
                    self._add_rows(served, reached, transport, count, CLOSED)
                    if self.effort.open_loop and count == OPEN_CLIENTS:
                        self._open_loops(served, transport, reached)

    def _open_loops(
        self, served: Sequence[AskedSide], transport: str, reached: dict[str, Found]
    ) -> None:
        for part in OPEN_LOOP:
            rates = {side: part * statistics.median(each.per_s) for side, each in reached.items()}
            results = self._in_turns(served, transport, OPEN_CLIENTS, rates)
            self._add_rows(served, results, transport, OPEN_CLIENTS, f"open, {part:.0%}")

    def _load(
        self, side: AskedSide, transport: str, seconds: float, pace_s: float | None = None
    ) -> Load:
        return Load(side.target(transport), seconds, WARM_UP_S, pace_s, self.weights)

    def _in_turns(
        self,
        served: Sequence[AskedSide],
        transport: str,
        count: int,
        rates: dict[str, float] | None,
    ) -> dict[str, Found]:
        """Measure all sides, interleaved; return the results by side.

        ``rates``: requests a second of all clients together; None: closed loops.
        """
        sides = {side.name: side for side in served}
        results = {name: Found() for name in sides}

        def measure(name: str) -> None:
            pace_s = None if rates is None else count / rates[name]
            run = self._load(sides[name], transport, self.effort.seconds, pace_s)
            _measure(sides[name], run, count, results[name], self.crowd)

        in_rounds(sides, self.effort.rounds, measure)
        return results

    def _add_rows(
        self,
        served: Sequence[AskedSide],
        found: dict[str, Found],
        transport: str,
        count: int,
        load: str,
    ) -> None:
        what = f"{self.name}, {'dynamic' if self.batching else 'no'} batching"
        asked = {"transport": transport, "clients": count, "load": load}
        for side in served:
            each = found[side.name]
            pids = [process.pid for process in side.server.processes()]
            self.report.rows.append(
                {
                    "model": self.name,
                    "batching": self.batching,
                    **asked,
                    "side": side.name,
                    "setting": "" if side.name == BRISK else str(side.setting),
                    **each.row(),
                    "mib": sum(one.pss_bytes for one in memory_of(pids)) / 2**20,
                    "what": f"{what}, {transport}, {count}",
                }
            )
            if each.errors:
                text = f"{what}: errors of {side.name}"
                self.report.checks.append(Check(text, each.errors[0], "none", False))

    def _best_setting(self, side: str) -> PeerSetting:
        """Return the setting that answers most in a short trial."""
        settings = settings_of(side, len(os.sched_getaffinity(0)))
        if len(settings) == 1:
            return settings[0]
        rates = {}
        for setting in settings:
            with self._served(side, setting) as served:
                run = self._load(served, GRPC, TRIAL_S)
                rates[setting] = self.crowd.measure(run, TRIAL_CLIENTS).per_s
        return max(rates, key=rates.__getitem__)

    @contextlib.contextmanager
    def _served(self, side: str, setting: PeerSetting) -> Iterator[AskedSide]:
        with tempfile.TemporaryDirectory(prefix="brisk-throughput-") as folder:
            repository = Path(folder)
            for name, case in self.entries.items():
                write_entry(repository, name, case, side, setting, batching=self.batching)
            backends = self.peer if side == CPP else None
            with benchmark_server(repository, {}, [WITHOUT_COMPLETION], backends) as server:
                if side == BRISK:
                    _settle(server, self.entries)
                yield AskedSide(side, setting, server, list(self.entries))

    def _check_answers(self, served: Sequence[AskedSide]) -> None:
        for side in served:
            with InferenceClient(side.server.grpc, Transport.GRPC) as client:
                for entry, case in self.entries.items():
                    rows = slice(0, 1) if takes_rows(case) else slice(None)
                    expected = {key: array[rows] for key, array in case.expected.items()}
                    if not agree_by_name(client.infer(entry, inputs_of(case)), expected):
                        text = f"{self.name}: answers of {side.name}"
                        self.report.checks.append(Check(text, "wrong", "onnxruntime's", False))
                        return


def _measure(side: AskedSide, run: Load, count: int, into: Found, crowd: Clients) -> None:
    used: list[dict[str, float]] = []

    def look(begin_s: float, end_s: float) -> None:
        for moment_s in (begin_s, end_s):
            time.sleep(max(0.0, moment_s - time.monotonic()))
            used.append(side.server.processor_s_by_kind())

    measured: Measured = crowd.measure(run, count, look)
    into.errors += measured.errors
    if not len(measured.latency_s):
        raise RuntimeError(f"{side.name} answered nothing: {measured.errors[:1]}")
    into.per_s.append(measured.per_s)
    into.latency_s.append(measured.latency_s)
    for kind in KINDS:
        taken_s = used[1][kind] - used[0][kind]
        into.us[kind].append(taken_s / len(measured.latency_s) * 1e6)


def _settle(server: BenchmarkServer, entries: Mapping[str, Case]) -> None:
    """Ask each entry, and wait until its kernels change no more."""
    with InferenceClient(server.grpc, Transport.GRPC) as client:
        for name, case in entries.items():
            client.infer(name, inputs_of(case))
    for name in entries:
        wait_until_settled(server.place, name, "normal")


def inputs_of(case: Case) -> dict[str, np.ndarray]:
    """Return a request's inputs: of one row, if the model takes any number."""
    return {name: array[:1] if takes_rows(case) else array for name, array in case.inputs.items()}


def _requests(entries: Mapping[str, Case]) -> dict[str, bytes]:
    requests = {}
    for name, case in entries.items():
        inputs = inputs_of(case)
        requests[f"{GRPC} {name}"] = grpc_request(name, inputs)
        requests[f"{HTTP} {name}"] = http_request(name, inputs, list(case.expected))
    return requests
