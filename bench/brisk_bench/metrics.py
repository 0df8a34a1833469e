"""`brisk bench metrics`: what counting and publishing cost.

Two real servers are asked at the same modest rate in turns, one that publishes every second (five
times as often as by default), one that publishes nothing: what the first one's processes use more
of the processors is what publishing costs. A ratio of latencies would not show it: two servers
alike differ by some percent here. Counting goes on in both; its time is measured by itself.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Sequence

import numpy as np

from brisk.settings import DEFAULT_INTERVAL_S
from brisk.telemetry.statistics import RequestAccount, Statistics
from brisk_bench.harness.command_line import bars, benchmark_parser, run_command
from brisk_bench.harness.machine import new_report
from brisk_bench.harness.report import Report, check_limit
from brisk_bench.harness.sampling import in_rounds
from brisk_bench.harness.served_entries import SAMPLES
from brisk_bench.harness.served_server import BenchmarkServer, benchmark_server
from brisk_client.inference import InferenceClient, Transport

MODEL = "digits_cnn"
INTERVAL_S = 1.0
BLOCK_S = 3.0
"""Whole intervals: the same number of publications in each block."""

REQUEST_INTERVAL_S = 0.02
"""Each request changes some fifty series, so that there is something to publish."""

LIMIT_PERCENT = 1.0
PERCENT = "percent of a processor"


def run(quick: bool = False) -> Report:
    """Blocks of requests, one server after the other, in turns."""
    pairs = 8 if quick else 20
    report = new_report("metrics", ("torch", "tritonclient", "numpy"), ())
    took_us: list[float] = []
    with contextlib.ExitStack() as stack:
        sides = {}
        for name, interval_s in (("published", INTERVAL_S), ("not published", 0.0)):
            environment = {"BRISK_METRICS_INTERVAL_S": str(interval_s)}
            options = ["--model-control-mode=explicit", f"--load-model={MODEL}"]
            server = stack.enter_context(benchmark_server(SAMPLES, environment, options))
            client = stack.enter_context(InferenceClient(server.grpc, Transport.GRPC))
            sides[name] = server, client
        inputs = sides["published"][1].example_inputs(MODEL)
        used, _ = in_rounds(
            sides, pairs, lambda name: _block(*sides[name], inputs, took_us), uncounted=1
        )
    report.rows += [
        {
            "unit": PERCENT,
            "what": f"server side, {name}",
            "median": statistics.median(percents),
            "spread": statistics.stdev(percents),
            "blocks": len(percents),
        }
        for name, percents in used.items()
    ]
    more = [left - right for left, right in zip(*used.values(), strict=True)]
    # The middle half: other processes of the machine disturb whole blocks.
    kept = sorted(more)[len(more) // 4 : len(more) - len(more) // 4]
    often, error = statistics.fmean(kept), 1.25 * statistics.stdev(more) / math.sqrt(len(more))
    share = INTERVAL_S / DEFAULT_INTERVAL_S
    counting_us, latency_us = _counting_us(), statistics.median(took_us)
    report.rows += [
        {"unit": PERCENT, "what": "publishing every second", "median": often},
        {"unit": "us", "what": "counting a request", "median": counting_us},
        {
            "unit": "us",
            "what": "a request's latency",
            "median": latency_us,
            "blocks": len(took_us),
        },
    ]
    for text, found in (
        (f"publishing every {DEFAULT_INTERVAL_S:g} s, percent of a processor", often * share),
        ("standard error of that", error * share),
        ("counting, percent of a request's latency", counting_us / latency_us * 100),
    ):
        report.checks.append(check_limit(text, found, "<=", LIMIT_PERCENT))
    return report


def main(arguments: Sequence[str]) -> int:
    parser = benchmark_parser("metrics", __doc__, "fewer blocks")
    return run_command(parser, arguments, run, bars("median", "unit", "what"))


def _block(
    server: BenchmarkServer,
    client: InferenceClient,
    inputs: dict[str, np.ndarray],
    took_us: list[float],
) -> float:
    """Ask at a fixed rate; processor time of the server side, in percent of a processor."""
    begin_s, before_s = time.monotonic(), server.processor_s()
    for number in range(round(BLOCK_S / REQUEST_INTERVAL_S)):
        time.sleep(max(0.0, begin_s + number * REQUEST_INTERVAL_S - time.monotonic()))
        asked_ns = time.monotonic_ns()
        client.infer(MODEL, inputs)
        took_us.append((time.monotonic_ns() - asked_ns) / 1e3)
    time.sleep(max(0.0, begin_s + BLOCK_S - time.monotonic()))
    return (server.processor_s() - before_s) / (time.monotonic() - begin_s) * 100


def _counting_us(rounds: int = 20_000) -> float:
    account = RequestAccount(Statistics(), MODEL, 1)
    started_ns = time.perf_counter_ns()
    for _ in range(rounds):
        account.succeeded("normal", 1_500_000, 50_000, 80_000)
    return (time.perf_counter_ns() - started_ns) / rounds / 1e3
