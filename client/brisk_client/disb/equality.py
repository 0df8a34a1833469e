"""Whether interrupted runs give the answers of undisturbed ones, bit by bit."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from brisk_client.benchmarks.served_server import BenchmarkServer, benchmark_server
from brisk_client.disb.networks import NETWORKS, build_bert, build_densenet
from brisk_client.disb.probe import ProbedModel, finish, probed_runtime
from brisk_client.disb.repositories import SUFFIXES, entry_name, write_brisk, write_models
from brisk_client.disb.settling import wait_until_settled
from brisk_client.disb.sides import DEFAULT_POLICY, POLICY_VARIABLE
from brisk_client.inference import InferenceClient, Transport
from brisk_client.report import Check, Report

SETTLING_RUNS = 20
"""Until a worker has chosen its number of threads."""

INTERRUPTED_CLASSES = ("besteffort", "normal")


def check_points(report: Report, points: int, threads: int) -> None:
    """``points`` random preemption points at the wire, half of each interrupted class."""
    models = {"urgent": build_densenet(8, (1, 1, 1, 1)), "background": build_bert(96, 3, 48)}
    variables = {POLICY_VARIABLE: DEFAULT_POLICY, "BRISK_THREADS": str(threads)}
    wrong = 0
    with probed_runtime(models, variables) as probed:
        probed["urgent"].settle("realtime", SETTLING_RUNS)
        for job_class in INTERRUPTED_CLASSES:
            wrong += _interrupt(probed, job_class, points // len(INTERRUPTED_CLASSES))
    name = f"answers that {points} random preemptions changed"
    report.checks.append(Check(name, wrong, "0", wrong == 0))


def _interrupt(probed: Mapping[str, ProbedModel], job_class: str, points: int) -> int:
    """How many of ``points`` interrupted runs differ from the undisturbed one."""
    urgent, background = probed["urgent"], probed["background"]
    source = random.Random(0)
    expected = background.settle(job_class, SETTLING_RUNS)
    wrong = 0
    for _ in range(points):
        pending = background.submit(job_class)
        time.sleep(source.random() * expected.total_ns / 1e9)
        urgent.ask("realtime")
        wrong += finish(*pending).outputs != expected.outputs
    return wrong


def check_served(report: Report, requests: int, threads: int) -> None:
    """Best-effort answers of every network through Triton, beside a real-time client."""
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="brisk-equality-") as folder:
        files = write_models(Path(folder) / "models")
        wanted = [(name, job_class) for name in NETWORKS for job_class in SUFFIXES]
        write_brisk(Path(folder) / "repository", files, wanted)
        variables = {POLICY_VARIABLE: DEFAULT_POLICY, "BRISK_THREADS": str(threads)}
        options = ["--disable-auto-complete-config"]
        with benchmark_server(Path(folder) / "repository", variables, options) as server:
            wrong = sum(_differing(server, name, requests) for name in NETWORKS)
    name = f"answers through Triton that differ beside real-time requests, {requests} a network"
    report.checks.append(Check(name, wrong, "0", wrong == 0))


def _differing(server: BenchmarkServer, name: str, requests: int) -> int:
    url = server.grpc
    shape = [d.dim_value for d in NETWORKS[name].build().graph.input[0].type.tensor_type.shape.dim]
    inputs = {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
    ended = threading.Event()

    def interrupt() -> None:
        with InferenceClient(url, Transport.GRPC) as client:
            while not ended.is_set():
                begun_s = time.monotonic()
                client.infer(entry_name(name, "realtime"), inputs)
                ended.wait(time.monotonic() - begun_s)  # without pauses, nothing else would run

    with InferenceClient(url, Transport.GRPC) as client:
        background = entry_name(name, "besteffort")
        for job_class in SUFFIXES:
            client.infer(entry_name(name, job_class), inputs)
            wait_until_settled(server.place, entry_name(name, job_class), job_class)
        for _ in range(SETTLING_RUNS):
            expected = client.infer(background, inputs)["y"]
            client.infer(entry_name(name, "realtime"), inputs)
        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            answers = [client.infer(background, inputs)["y"] for _ in range(requests)]
        finally:
            ended.set()
            thread.join()
    return sum(answer.tobytes() != expected.tobytes() for answer in answers)
