"""Whether interrupted runs give the answers of undisturbed ones, bit by bit."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from brisk_client.benchmarks.harness.served_server import BenchmarkServer
from brisk_client.disb.networks import NETWORKS, build_bert, build_densenet
from brisk_client.disb.sides import (
    DEFAULT_POLICY,
    SUFFIXES,
    brisk_server,
    entry_name,
    runtime_variables,
    save_models,
    write_brisk,
)
from brisk_client.disb.wire import (
    ProbedModel,
    counting_interruptions,
    finish,
    probed_runtime,
    wait_until_settled,
)
from brisk_client.inference import InferenceClient, Transport
from brisk_client.report import Check, Report

SETTLING_RUNS = 20
"""Until a worker has chosen its number of threads."""

INTERRUPTED_CLASSES = ("besteffort", "normal")

LATEST_MOMENT = 0.75
"""Of the time of a run alone: a request takes a while from its sending to the worker."""

MOST_ATTEMPTS = 10
"""Times the interruptions wanted: some requests come when the run has just ended, the policy lets
some runs go on beside them, and on a busy machine both are frequent."""

LEAST_SHARE = 0.95
"""Of the interruptions stated, that must have happened."""


def check_points(report: Report, points: int, threads: int) -> None:
    """``points`` interruptions at random moments at the wire, half of each interrupted class."""
    models = {"urgent": build_densenet(8, (1, 1, 1, 1)), "background": build_bert(128, 32, 64)}
    variables = runtime_variables(DEFAULT_POLICY, threads)
    each = points // len(INTERRUPTED_CLASSES)
    with probed_runtime(models, variables) as probed:
        probed["urgent"].settle("realtime", SETTLING_RUNS)
        for job_class in INTERRUPTED_CLASSES:
            found = _interrupt(probed, job_class, each)
            add_outcome(report, f"{job_class} runs", found, each)


@dataclass(frozen=True, slots=True)
class Outcome:
    """``attempts``: runs beside which a real-time request was sent. ``interrupted``: those that
    the workers say were parked, stopped or held for it. ``wrong``: answers, of all attempts, that
    differ from the undisturbed one's.
    """

    attempts: int
    interrupted: int
    wrong: int


def add_outcome(report: Report, what: str, found: Outcome, stated: int) -> None:
    """Checks that no answer differs and that what was ``stated`` to be interrupted really was."""
    least = round(LEAST_SHARE * stated)
    name = f"{what} that were really interrupted, of {stated}"
    is_enough = found.interrupted >= least
    report.checks.append(Check(name, found.interrupted, f">= {least}", is_enough))
    name = f"answers of {found.attempts} {what} that differ, {found.interrupted} interrupted"
    report.checks.append(Check(name, found.wrong, "0", found.wrong == 0))


def _interrupt(probed: Mapping[str, ProbedModel], job_class: str, points: int) -> Outcome:
    """Until ``points`` runs were really interrupted, within MOST_ATTEMPTS times as many."""
    urgent, background = probed["urgent"], probed["background"]
    source = random.Random(0)
    expected = background.settle(job_class, SETTLING_RUNS)
    alone_s = min(background.ask(job_class).total_ns for _ in range(SETTLING_RUNS)) / 1e9
    attempts = interrupted = wrong = 0
    with counting_interruptions(background.place) as has_more:
        while interrupted < points and attempts < MOST_ATTEMPTS * points:
            pending = background.submit(job_class)
            time.sleep(source.random() * LATEST_MOMENT * alone_s)
            urgent.ask("realtime")
            wrong += finish(*pending).outputs != expected.outputs
            interrupted += has_more()
            attempts += 1
    return Outcome(attempts, interrupted, wrong)


def check_served(report: Report, networks: Sequence[str], requests: int, threads: int) -> None:
    """Best-effort answers of each network through Triton, beside a real-time client."""
    with tempfile.TemporaryDirectory(prefix="brisk-equality-") as folder:
        models = {name: NETWORKS[name].build() for name in networks}
        files = save_models(Path(folder) / "models", models)
        wanted = [(name, job_class) for name in networks for job_class in SUFFIXES]
        write_brisk(Path(folder) / "repository", files, wanted)
        with brisk_server(Path(folder) / "repository", DEFAULT_POLICY, threads) as server:
            for name in networks:
                found = _beside_requests(server, name, requests)
                add_outcome(report, f"{name} runs through Triton", found, requests)


def _beside_requests(server: BenchmarkServer, name: str, requests: int) -> Outcome:
    url = server.grpc
    shape = [d.dim_value for d in NETWORKS[name].build().graph.input[0].type.tensor_type.shape.dim]
    inputs = {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
    ended = threading.Event()

    def interrupt() -> None:
        with InferenceClient(url, Transport.GRPC) as client:
            while not ended.is_set():
                begun_s = time.monotonic()
                client.infer(entry_name(name, "realtime"), inputs)
                # Without pauses nothing else would run; in longer ones, runs as long as these
                # would begin and end.
                ended.wait((time.monotonic() - begun_s) / 2)

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
            with counting_interruptions(server.place) as has_more:
                answers: list[np.ndarray] = []
                interrupted = 0
                while interrupted < requests and len(answers) < MOST_ATTEMPTS * requests:
                    answers.append(client.infer(background, inputs)["y"])
                    interrupted += has_more()
        finally:
            ended.set()
            thread.join()
    wrong = sum(answer.tobytes() != expected.tobytes() for answer in answers)
    return Outcome(len(answers), interrupted, wrong)
