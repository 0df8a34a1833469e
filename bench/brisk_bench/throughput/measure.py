"""Runs of `brisk bench throughput`: sides interleaved, their rates, latencies, processor time."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
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


def measure_entries(
    report: Report,
    name: str,
    cases: Sequence[Case],
    weights: Sequence[float],
    effort: Effort,
    crowd: Clients,
    cores: int,
    peer: Path | None,
    *,
    batching: bool,
) -> None:
    """Add rows of a model, or of several that are asked in proportion to ``weights``."""
    sides = [BRISK, PYTHON, *([JOINED] if batching else []), *([CPP] if peer is not None else [])]
    names = [f"entry_{number}" for number in range(len(cases))]
    crowd.give(_requests(names, cases))
    with contextlib.ExitStack() as stack:
        served = []
        for side in sides:
            setting = _best(side, names, cases, weights, crowd, cores, peer, batching=batching)
            opened = _served(side, setting, names, cases, peer, batching=batching)
            served.append(stack.enter_context(opened))
        _check_answers(report, name, served, cases)
        for each in served:
            before = Load(each.target(GRPC), effort.before_s, WARM_UP_S, None, weights)
            crowd.measure(before, min(TRIAL_CLIENTS, max(effort.counts)))
        described = {"model": name, "batching": batching}
        for transport in effort.transports:
            for count in effort.counts:
                load = {**described, "transport": transport, "clients": count, "load": CLOSED}
                results = _in_turns(served, transport, count, None, weights, effort, crowd)
                _add_rows(report, load, served, results)
                if effort.open_loop and count == OPEN_CLIENTS:
                    _open_loops(
                        report, described, transport, served, results, weights, effort, crowd
                    )


def _open_loops(
    report: Report,
    described: dict[str, Any],
    transport: str,
    served: Sequence[AskedSide],
    reached: dict[str, Found],
    weights: Sequence[float],
    effort: Effort,
    crowd: Clients,
) -> None:
    for part in OPEN_LOOP:
        rates = {side: part * statistics.median(each.per_s) for side, each in reached.items()}
        results = _in_turns(served, transport, OPEN_CLIENTS, rates, weights, effort, crowd)
        load = {"transport": transport, "clients": OPEN_CLIENTS, "load": f"open, {part:.0%}"}
        _add_rows(report, {**described, **load}, served, results)


def _in_turns(
    served: Sequence[AskedSide],
    transport: str,
    count: int,
    rates: dict[str, float] | None,
    weights: Sequence[float],
    effort: Effort,
    crowd: Clients,
) -> dict[str, Found]:
    """Measure all sides, interleaved; return the results by side.

    ``rates``: requests a second of all clients together; None: closed loops.
    """
    sides = {side.name: side for side in served}
    results = {name: Found() for name in sides}

    def measure(name: str) -> None:
        pace_s = None if rates is None else count / rates[name]
        target = sides[name].target(transport)
        run = Load(target, effort.seconds, WARM_UP_S, pace_s, weights)
        _measure(sides[name], run, count, results[name], crowd)

    in_rounds(sides, effort.rounds, measure)
    return results


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


def _add_rows(
    report: Report, load: dict[str, Any], served: Sequence[AskedSide], found: dict[str, Found]
) -> None:
    what = f"{load['model']}, {'dynamic' if load['batching'] else 'no'} batching"
    for side in served:
        each = found[side.name]
        mib = sum(one.pss_bytes for one in memory_of(_pids(side.server))) / 2**20
        setting = "" if side.name == BRISK else str(side.setting)
        row = {**load, "side": side.name, "setting": setting, **each.row(), "mib": mib}
        report.rows.append({**row, "what": f"{what}, {load['transport']}, {load['clients']}"})
        if each.errors:
            text = f"{what}: errors of {side.name}"
            report.checks.append(Check(text, each.errors[0], "none", False))


def _pids(server: BenchmarkServer) -> list[int]:
    return [each.pid for each in server.processes()]


def _best(
    side: str,
    names: Sequence[str],
    cases: Sequence[Case],
    weights: Sequence[float],
    crowd: Clients,
    cores: int,
    peer: Path | None,
    *,
    batching: bool,
) -> PeerSetting:
    """Return the setting that answers most in a short trial."""
    settings = settings_of(side, cores)
    if len(settings) == 1:
        return settings[0]
    rates = {}
    for setting in settings:
        with _served(side, setting, names, cases, peer, batching=batching) as served:
            run = Load(served.target(GRPC), TRIAL_S, WARM_UP_S, None, weights)
            rates[setting] = crowd.measure(run, TRIAL_CLIENTS).per_s
    return max(rates, key=rates.__getitem__)


@contextlib.contextmanager
def _served(
    side: str,
    setting: PeerSetting,
    names: Sequence[str],
    cases: Sequence[Case],
    peer: Path | None,
    *,
    batching: bool,
) -> Iterator[AskedSide]:
    with tempfile.TemporaryDirectory(prefix="brisk-throughput-") as folder:
        repository = Path(folder)
        for name, case in zip(names, cases, strict=True):
            write_entry(repository, name, case, side, setting, batching=batching)
        backends = peer if side == CPP else None
        with benchmark_server(repository, {}, [WITHOUT_COMPLETION], backends) as server:
            served = AskedSide(side, setting, server, names)
            if side == BRISK:
                _settle(server, names, cases)
            yield served


def _settle(server: BenchmarkServer, names: Sequence[str], cases: Sequence[Case]) -> None:
    """Ask each entry, and wait until its kernels change no more."""
    with InferenceClient(server.grpc, Transport.GRPC) as client:
        for name, case in zip(names, cases, strict=True):
            client.infer(name, inputs_of(case))
    for name in names:
        wait_until_settled(server.place, name, "normal")


def inputs_of(case: Case) -> dict[str, np.ndarray]:
    """Return a request's inputs: of one row, if the model takes any number."""
    return {name: array[:1] if takes_rows(case) else array for name, array in case.inputs.items()}


def _requests(names: Sequence[str], cases: Sequence[Case]) -> dict[str, bytes]:
    requests = {}
    for name, case in zip(names, cases, strict=True):
        inputs = inputs_of(case)
        requests[f"{GRPC} {name}"] = grpc_request(name, inputs)
        requests[f"{HTTP} {name}"] = http_request(name, inputs, list(case.expected))
    return requests


def _check_answers(
    report: Report, name: str, served: Sequence[AskedSide], cases: Sequence[Case]
) -> None:
    for side in served:
        with InferenceClient(side.server.grpc, Transport.GRPC) as client:
            for entry, case in zip(side.names, cases, strict=True):
                rows = slice(0, 1) if takes_rows(case) else slice(None)
                expected = {key: array[rows] for key, array in case.expected.items()}
                outputs = client.infer(entry, inputs_of(case))
                if not agree_by_name(outputs, expected):
                    text = f"{name}: answers of {side.name}"
                    report.checks.append(Check(text, "wrong", "onnxruntime's", False))
                    return
