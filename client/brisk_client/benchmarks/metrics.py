"""`brisk bench metrics`: what counting and publishing cost a request.

The same small model is asked through two real servers in turns, one that publishes as often as by
default, one that publishes nothing, in blocks as long as that interval. Latency tells what
requests wait for publications; processor time of the whole server side per request tells what
these cost, and varies less. Counting goes on in both; its time is measured by itself.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from dataclasses import dataclass

import numpy as np

from brisk.frontend.accounting import RequestAccount
from brisk.telemetry import Statistics
from brisk.telemetry.exposition import DEFAULT_INTERVAL_S
from brisk_client.benchmarks.machine import describe_machine, installed_versions
from brisk_client.benchmarks.pressure import REPOSITORY
from brisk_client.benchmarks.served_server import BenchmarkServer, benchmark_server
from brisk_client.inference import InferenceClient, Transport
from brisk_client.report import Check, Report

MODEL = "digits_cnn"
INTERVALS_S = {"published": DEFAULT_INTERVAL_S, "not published": 0.0}
LIMIT_PERCENT = 1.0


@dataclass(frozen=True, slots=True)
class Block:
    """Means over a block's requests, in µs."""

    latency_us: float
    processor_us: float


def run(quick: bool = False) -> Report:
    """Blocks of requests, one server after the other, in turns."""
    pairs = 6 if quick else 16
    report = Report(
        name="metrics",
        machine=describe_machine(),
        versions=installed_versions("torch", "tritonclient", "numpy"),
        rows=[],
        checks=[],
    )
    blocks: dict[str, list[Block]] = {name: [] for name in INTERVALS_S}
    with contextlib.ExitStack() as stack:
        sides = {}
        for name, interval_s in INTERVALS_S.items():
            environment = {"BRISK_METRICS_INTERVAL_S": str(interval_s)}
            options = ["--model-control-mode=explicit", f"--load-model={MODEL}"]
            server = stack.enter_context(benchmark_server(REPOSITORY, environment, options))
            client = stack.enter_context(InferenceClient(server.grpc, Transport.GRPC))
            sides[name] = server, client
        inputs = sides["published"][1].example_inputs(MODEL)
        for side in sides.values():
            _block(*side, inputs)
        for number in range(pairs):
            for name in list(sides)[:: 1 if number % 2 else -1]:
                blocks[name].append(_block(*sides[name], inputs))
    for name, values in blocks.items():
        for what in ("latency_us", "processor_us"):
            numbers = [getattr(block, what) for block in values]
            report.rows.append(
                {
                    "requests": name,
                    "what": what,
                    "median_us": statistics.median(numbers),
                    "spread_us": statistics.stdev(numbers),
                    "blocks": len(numbers),
                }
            )
    for what, text in (
        ("latency_us", "publishing, percent of a request's latency"),
        ("processor_us", "publishing, percent of a request's processor time"),
    ):
        _compare(
            report, text, [[getattr(block, what) for block in side] for side in blocks.values()]
        )
    counting_us = _counting_us()
    latency_us = statistics.median(block.latency_us for block in blocks["not published"])
    counting = counting_us / latency_us * 100
    report.rows.append({"requests": "counting alone", "median_us": counting_us})
    text = "counting, percent of a request's latency"
    report.checks.append(Check(text, counting, f"<= {LIMIT_PERCENT:g}", counting <= LIMIT_PERCENT))
    return report


def _compare(report: Report, text: str, sides: list[list[float]]) -> None:
    """The median of neighbouring blocks' ratios, and its standard error by their spread."""
    ratios = [with_us / without_us for with_us, without_us in zip(*sides, strict=True)]
    cost = (statistics.median(ratios) - 1) * 100
    deviations = statistics.median(abs(ratio - statistics.median(ratios)) for ratio in ratios)
    error = 1.4826 * 1.2533 * deviations / math.sqrt(len(ratios)) * 100
    report.rows.append({"requests": text, "median_percent": cost, "standard_error_percent": error})
    report.checks += [
        Check(text, cost, f"<= {LIMIT_PERCENT:g}", cost <= LIMIT_PERCENT),
        Check(
            f"standard error of that: {text}", error, f"< {LIMIT_PERCENT:g}", error < LIMIT_PERCENT
        ),
    ]


def _block(
    server: BenchmarkServer, client: InferenceClient, inputs: dict[str, np.ndarray]
) -> Block:
    """As many requests as go into an interval: there is one publication in it, where any."""
    count, processor_s = 0, server.processor_s()
    begin_ns = now_ns = time.monotonic_ns()
    end_ns = begin_ns + int(DEFAULT_INTERVAL_S * 1e9)
    while now_ns < end_ns:
        client.infer(MODEL, inputs)
        now_ns = time.monotonic_ns()
        count += 1
    took_us = (now_ns - begin_ns) / 1e3
    return Block(took_us / count, (server.processor_s() - processor_s) * 1e6 / count)


def _counting_us(rounds: int = 20_000) -> float:
    account = RequestAccount(Statistics(), MODEL, 1)
    started_ns = time.perf_counter_ns()
    for _ in range(rounds):
        account.succeeded("normal", 1_500_000, 50_000, 80_000)
    return (time.perf_counter_ns() - started_ns) / rounds / 1e3
