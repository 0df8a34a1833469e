"""`brisk bench metrics`: what counting and publishing cost a request.

The same small model is asked through two real servers in turns, one that publishes every quarter
of a second (eight times as often as by default), one that publishes nothing. Counting goes on in
both; its time is measured by itself.
"""

from __future__ import annotations

import contextlib
import statistics
import time

import numpy as np

from brisk.frontend.accounting import RequestAccount
from brisk.telemetry import Statistics
from brisk_client.benchmarks.machine import describe_machine, installed_versions
from brisk_client.benchmarks.pressure import REPOSITORY
from brisk_client.benchmarks.served_server import benchmark_server
from brisk_client.inference import InferenceClient, Transport
from brisk_client.report import Check, Report

MODEL = "digits_cnn"
INTERVALS_S = {"published": 0.25, "not published": 0.0}
LIMIT_PERCENT = 1.0


def run(quick: bool = False) -> Report:
    """Blocks of requests, one server after the other, in turns."""
    blocks, block_s = (12, 0.5) if quick else (40, 1.0)
    report = Report(
        name="metrics",
        machine=describe_machine(),
        versions=installed_versions("torch", "tritonclient", "numpy"),
        rows=[],
        checks=[],
    )
    times_us: dict[str, list[float]] = {name: [] for name in INTERVALS_S}
    with contextlib.ExitStack() as stack:
        clients = {}
        for name, interval_s in INTERVALS_S.items():
            environment = {"BRISK_METRICS_INTERVAL_S": str(interval_s)}
            options = ["--model-control-mode=explicit", f"--load-model={MODEL}"]
            server = stack.enter_context(benchmark_server(REPOSITORY, environment, options))
            clients[name] = stack.enter_context(InferenceClient(server.grpc, Transport.GRPC))
        inputs = clients["published"].example_inputs(MODEL)
        for client in clients.values():
            _block(client, inputs, block_s)
        for _ in range(blocks):
            for name, client in clients.items():
                times_us[name].append(_block(client, inputs, block_s))
    for name, values in times_us.items():
        report.rows.append(
            {
                "requests": name,
                "median_us": statistics.median(values),
                "spread_us": statistics.stdev(values),
                "blocks": len(values),
            }
        )
    ratios = [
        with_us / without_us
        for with_us, without_us in zip(
            times_us["published"], times_us["not published"], strict=True
        )
    ]
    publishing = (statistics.median(ratios) - 1) * 100
    counting_us = _counting_us()
    counting = counting_us / statistics.median(times_us["not published"]) * 100
    report.rows.append({"requests": "counting alone", "median_us": counting_us})
    for text, found in (
        ("publishing, percent of a request's time", publishing),
        ("counting, percent of a request's time", counting),
    ):
        report.checks.append(Check(text, found, f"<= {LIMIT_PERCENT:g}", found <= LIMIT_PERCENT))
    return report


def _block(client: InferenceClient, inputs: dict[str, np.ndarray], seconds: float) -> float:
    """Mean time of a request, in µs, over as many as go into ``seconds``."""
    times_ns = []
    end_ns = time.monotonic_ns() + int(seconds * 1e9)
    before_ns = time.monotonic_ns()
    while before_ns < end_ns:
        client.infer(MODEL, inputs)
        now_ns = time.monotonic_ns()
        times_ns.append(now_ns - before_ns)
        before_ns = now_ns
    return statistics.fmean(times_ns) / 1e3


def _counting_us(rounds: int = 20_000) -> float:
    account = RequestAccount(Statistics(), MODEL, 1)
    started_ns = time.perf_counter_ns()
    for _ in range(rounds):
        account.succeeded("normal", 1_500_000, 50_000, 80_000)
    return (time.perf_counter_ns() - started_ns) / rounds / 1e3
