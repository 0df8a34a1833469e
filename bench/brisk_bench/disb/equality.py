"""Checks that interrupted runs give the answers of undisturbed ones, bit by bit."""

from __future__ import annotations

import random
import statistics
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from brisk_bench.disb.networks import NETWORKS, build_bert, build_densenet
from brisk_bench.disb.plan import DEFAULT_POLICY, Plan
from brisk_bench.disb.sides import (
    SUFFIXES,
    brisk_server,
    entry_name,
    runtime_variables,
    save_models,
    write_brisk,
)
from brisk_bench.disb.wire import (
    ProbedModel,
    counting_interruptions,
    input_of,
    interrupt,
    probed_runtime,
)
from brisk_bench.harness.report import Check, Report, check_limit
from brisk_bench.harness.served_server import BenchmarkServer
from brisk_bench.harness.surroundings import wait_until_settled
from brisk_client.inference import InferenceClient, Transport

SETTLING_RUNS = 20
"""Runs after which a worker has chosen its number of threads."""

INTERRUPTED_CLASSES = ("besteffort", "normal")

LATEST_MOMENT = 0.75
"""The latest interruption, as a share of a run's time: a request takes a while to reach the
worker."""

RECENT = 5
"""The runs whose median says when the next one begins and how long it lasts. On a busy machine a
best-effort run waits for a processor, and gets little of it: a moment of a run's time alone would
lie before its beginning."""

MOST_ATTEMPTS = 10
"""The most attempts, as a multiple of the interruptions wanted. Some requests come when the run
has just ended, and the policy lets some runs go on concurrently; both are frequent on a busy
machine."""

LEAST_SHARE = 0.95
"""The share of the stated interruptions that must have happened."""


def check_points(report: Report, points: int, threads: int) -> None:
    """Check ``points`` interruptions at random moments at the wire, half of each class."""
    models = {"urgent": build_densenet(8, (1, 1, 1, 1)), "background": build_bert(128, 32, 64)}
    variables = runtime_variables(DEFAULT_POLICY, threads)
    each = points // len(INTERRUPTED_CLASSES)
    with probed_runtime(models, variables) as probed:
        probed["urgent"].settle("realtime", SETTLING_RUNS)
        for job_class in INTERRUPTED_CLASSES:
            outcome = _interrupt(probed, job_class, each)
            add_outcome(report, f"{job_class} runs", outcome, each)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of runs that were to be interrupted.

    ``attempts``: runs with which a real-time request was sent concurrently.
    ``interrupted``: those that the workers say were parked, stopped or held for it.
    ``wrong``: answers, of all attempts, that differ from the undisturbed one's.
    """

    attempts: int
    interrupted: int
    wrong: int


def add_outcome(report: Report, what: str, found: Outcome, stated: int) -> None:
    """Check that no answer differs, and that nearly all ``stated`` interruptions happened."""
    least = round(LEAST_SHARE * stated)
    name = f"{what} that were really interrupted, of {stated}"
    report.checks.append(check_limit(name, found.interrupted, ">=", least))
    name = f"answers of {found.attempts} {what} that differ, {found.interrupted} interrupted"
    report.checks.append(Check(name, found.wrong, "0", found.wrong == 0))


def _interrupt(probed: Mapping[str, ProbedModel], job_class: str, points: int) -> Outcome:
    """Send runs until ``points`` were really interrupted, at most MOST_ATTEMPTS times as many."""
    urgent, background = probed["urgent"], probed["background"]
    source = random.Random(0)
    expected = background.settle(job_class, SETTLING_RUNS)
    recent = deque((background.ask(job_class) for _ in range(RECENT)), maxlen=RECENT)
    attempts = interrupted = wrong = 0
    with counting_interruptions(background.place) as has_more:
        while interrupted < points and attempts < MOST_ATTEMPTS * points:
            share = source.random() * LATEST_MOMENT
            begins_ns = statistics.median(each.started_ns - each.submitted_ns for each in recent)
            lasts_ns = statistics.median(each.answered_ns - each.started_ns for each in recent)
            moment_s = (begins_ns + share * lasts_ns) / 1e9
            _, run = interrupt(urgent, background, job_class, moment_s)
            wrong += run.outputs != expected.outputs
            attempts += 1
            if has_more():
                interrupted += 1
            else:
                recent.append(run)
    return Outcome(attempts, interrupted, wrong)


def check_served(report: Report, plan: Plan) -> None:
    """Check best-effort answers of each network through Triton, next to a real-time client."""
    with tempfile.TemporaryDirectory(prefix="brisk-equality-") as folder:
        models = {name: NETWORKS[name].build() for name in plan.networks}
        files = save_models(Path(folder) / "models", models)
        repository = Path(folder) / "repository"
        write_brisk(repository, files, [(n, each) for n in plan.networks for each in SUFFIXES])
        with brisk_server(repository, DEFAULT_POLICY, plan.threads) as server:
            for name, model in models.items():
                outcome = _beside_requests(server, name, input_of(model), plan.served_requests)
                add_outcome(report, f"{name} runs through Triton", outcome, plan.served_requests)


def _beside_requests(
    server: BenchmarkServer, name: str, value: np.ndarray, requests: int
) -> Outcome:
    url, inputs = server.grpc, {"x": value}
    urgent, background = entry_name(name, "realtime"), entry_name(name, "besteffort")
    ended = threading.Event()

    def interrupt() -> None:
        with InferenceClient(url, Transport.GRPC) as client:
            while not ended.is_set():
                begun_s = time.monotonic()
                client.infer(urgent, inputs)
                # Without pauses nothing else would run; in longer ones, runs as long as these
                # would begin and end.
                ended.wait((time.monotonic() - begun_s) / 2)

    with InferenceClient(url, Transport.GRPC) as client:
        for entry, job_class in ((urgent, "realtime"), (background, "besteffort")):
            client.infer(entry, inputs)
            wait_until_settled(server.place, entry, job_class)
        for _ in range(SETTLING_RUNS):
            expected = client.infer(background, inputs)["y"]
            client.infer(urgent, inputs)
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
