"""The cost of one client to another: of an endless run to a real-time client, and of 64 clients of
a model to the one client of another."""

from __future__ import annotations

import time
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from tritonclient import grpc

from brisk_bench.harness.report import Check, Report, check_limit
from brisk_bench.harness.served_entries import SAMPLES
from brisk_bench.harness.served_server import BenchmarkServer
from brisk_bench.harness.tails import quantile, tail_or_shortage
from brisk_bench.samples.expectations import mismatch, read_expectations
from brisk_bench.soak.clients import described, run_for_ever
from brisk_bench.soak.entries import CROWD_ENTRY, CROWD_SAMPLE, ENDLESS
from brisk_client.inference import InferenceClient, Transport
from brisk_client.workload.child_process import child_process

URGENT = "resnet50"
CROWD = 64

BESIDE_ENDLESS_MS = 50.0
"""The most that an endless run may add to a real-time client's p99."""

BESIDE_CROWD = 3.0
"""The most of one client's median latency with CROWD clients of another model over that alone."""

_WARM_UP = 50
_PATIENCE_S = 300.0
_FOREVER_S = 600.0


def report_fairness(report: Report, server: BenchmarkServer, requests: int) -> None:
    """Add rows and checks of fairness. ``requests``: of each row."""
    alone = _asked(server, URGENT, "realtime", requests)
    with child_process("an endless run", run_for_ever, server.grpc, ENDLESS, _FOREVER_S) as child:
        begun = child.hear(_PATIENCE_S)
        beside = _asked(server, URGENT, "realtime", requests)
        child.say("end")
        ended = child.hear(_PATIENCE_S)
    is_endless = begun == "begun" and "cancel" in ended.lower()
    report.checks.append(
        Check(
            "the endless run went on until it was cancelled",
            "cancelled" if is_endless else ended,
            "cancelled",
            is_endless,
        )
    )
    report.rows += [
        _row(f"{URGENT}, realtime, alone", alone),
        _row(f"{URGENT}, realtime, beside an endless normal run", beside),
    ]
    tails = [tail_or_shortage(values, 0.99, 1e3) for values in (beside, alone)]
    lost = [each for each in tails if isinstance(each, str)]
    added = lost[0] if lost else float(tails[0]) - float(tails[1])
    name = "what an endless run adds to a real-time client's p99, ms"
    report.checks.append(check_limit(name, added, "<=", BESIDE_ENDLESS_MS, 1))

    alone = _asked(server, CROWD_SAMPLE, "normal", requests)
    arguments = (server.grpc, CROWD_ENTRY, CROWD_SAMPLE, CROWD)
    with child_process("the crowd", _crowd, *arguments) as child:
        child.hear(_PATIENCE_S)
        beside = _asked(server, CROWD_SAMPLE, "normal", requests)
        child.say("end")
        faults = child.hear(_PATIENCE_S)
    report.rows += [
        _row(f"{CROWD_SAMPLE}, normal, alone", alone),
        _row(f"{CROWD_SAMPLE}, normal, beside {CROWD} clients of a copy", beside),
    ]
    name = f"one client beside {CROWD} of another model over alone, p50"
    ratio = quantile(beside, 0.5) / quantile(alone, 0.5)
    report.checks.append(check_limit(name, ratio, "<=", BESIDE_CROWD, 2))
    report.checks.append(Check("errors of the crowd", len(faults), "0", not faults))
    report.notes += faults[:3]


def _row(what: str, values: list[float]) -> dict[str, Any]:
    return {
        "kind": "fairness",
        "what": what,
        "count": len(values),
        "p50_ms": quantile(values, 0.5) * 1e3,
        "p99_ms": tail_or_shortage(values, 0.99, 1e3),
    }


def _asked(server: BenchmarkServer, model: str, job_class: str, requests: int) -> list[float]:
    """Return the seconds of each answer to one client that asks without pause."""
    with child_process("one client", _ask, server.grpc, model, job_class, requests) as child:
        return child.hear(_PATIENCE_S)


def _ask(parent: Connection, url: str, model: str, job_class: str, requests: int) -> None:
    """Send requests as the child. A wrong answer ends it."""
    (*_, expectation) = read_expectations(SAMPLES / model)
    seconds = []
    with InferenceClient(url, Transport.GRPC) as client:
        for number in range(_WARM_UP + requests):
            begin_s = time.perf_counter()
            outputs = client.infer(
                model, expectation.inputs, parameters={"brisk_class": job_class}
            )
            if number >= _WARM_UP:
                seconds.append(time.perf_counter() - begin_s)
            if problem := mismatch(outputs, expectation.outputs):
                raise ValueError(problem)
    parent.send(seconds)


def _crowd(parent: Connection, url: str, model: str, sample: str, count: int) -> None:
    """Keep, as the child, ``count`` requests in flight until a message; then send the errors."""
    (*_, expectation) = read_expectations(SAMPLES / sample)
    inputs = described(expectation.inputs)
    came: SimpleQueue[Any] = SimpleQueue()
    faults = []
    with grpc.InferenceServerClient(url) as client:

        def ask() -> None:
            client.async_infer(model, inputs, lambda result, error: came.put(error))

        for _ in range(count):
            ask()
        in_flight, is_ending = count, False
        answered = 0
        while in_flight:
            error = came.get(timeout=_PATIENCE_S)
            answered += 1
            if error is not None:
                faults.append(str(error))
            if answered == count:
                parent.send("there")
            is_ending = is_ending or parent.poll()
            if is_ending:
                in_flight -= 1
            else:
                ask()
    parent.send(faults)
