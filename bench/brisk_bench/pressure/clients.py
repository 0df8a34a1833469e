"""Clients that ask without pause: threads of one child process, half HTTP, half gRPC.

They have a process of their own, so that their interpreter lock delays no measurement of the
parent. Through most of the warm-up all ask the same model at once, one model after the other:
every buffer gets the size that it can come to need. Answers of the warm-up are checked, too, but
their times are left out.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import NamedTuple

from tritonclient.utils import InferenceServerException

from brisk_bench.harness.report import Check, Report
from brisk_bench.harness.served_entries import SAMPLES
from brisk_bench.harness.served_server import BenchmarkServer
from brisk_bench.samples.expectations import EXPECTED, mismatch, read_expectations
from brisk_client.inference import InferenceClient, Transport
from brisk_client.workload.child_process import child_process

_GRACE_S = 90.0
_SHOWN_ERRORS = 5

_TOGETHER = 0.6
"""Share of the warm-up in which all clients ask the same model."""


class AnsweredAt(NamedTuple):
    """The times when a request was sent and answered (``time.monotonic``)."""

    begin_s: float
    end_s: float

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s


@dataclass(slots=True)
class ClientOutcome:
    """The clients' results: answers by model, wrong answers and other errors by their texts."""

    answered: dict[str, list[AnsweredAt]] = field(default_factory=lambda: defaultdict(list))
    wrong: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    @property
    def answers(self) -> int:
        """The number of answers to requests sent after the warm-up."""
        return sum(map(len, self.answered.values()))

    def judge(self, report: Report, errors_name: str) -> None:
        """Add the checks that there was no error and no wrong answer."""
        errors, wrong = self.errors.total(), self.wrong.total()
        is_right = errors == 0 and self.answers > 0
        report.checks.append(Check(errors_name, errors, "0", is_right))
        report.checks.append(Check("wrong answers", wrong, "0", wrong == 0))
        shown = (self.errors + self.wrong).most_common(_SHOWN_ERRORS)
        report.notes += [f"{count} × {text:.300}" for text, count in shown]


@contextlib.contextmanager
def pressure_clients(
    server: BenchmarkServer, count: int, warm_up_s: float, duration_s: float
) -> Iterator[Callable[[], ClientOutcome]]:
    """Run ``count`` clients of the samples; give a function that waits for the outcome.

    Raises ConnectionError if they fail, TimeoutError if they do not end.
    """
    arguments = (server.http, server.grpc, count, warm_up_s, duration_s)
    with child_process("the process of the clients", _serve, *arguments) as clients:
        clients.hear(_GRACE_S)
        yield lambda: clients.hear(warm_up_s + duration_s + _GRACE_S)


def _serve(
    parent: Connection, http: str, grpc: str, count: int, warm_up_s: float, duration_s: float
) -> None:
    """Run as the child process of all clients."""
    entries = sorted(file.parent for file in SAMPLES.glob(f"*/{EXPECTED}"))
    questions = [(entry.name, each) for entry in entries for each in read_expectations(entry)]
    outcome, lock = ClientOutcome(), threading.Lock()
    ready = threading.Barrier(count + 1)

    def ask(number: int, url: str, transport: Transport) -> None:
        """Ask, as client ``number``, the questions in turn, from its own first one, to the end.

        ``lock`` guards ``outcome``, which all clients share.
        """
        with InferenceClient(url, transport) as client:
            ready.wait(timeout=_GRACE_S)
            begun_s = time.monotonic()
            together_s = begun_s + _TOGETHER * warm_up_s
            warm_s = begun_s + warm_up_s
            position = number
            while (before_s := time.monotonic()) < warm_s + duration_s:
                if before_s < together_s:
                    past = (before_s - begun_s) / (together_s - begun_s)
                    model, expectation = questions[int(past * len(questions))]
                else:
                    model, expectation = questions[position % len(questions)]
                    position += 1
                try:
                    outputs = client.infer(model, expectation.inputs, version=expectation.version)
                except (InferenceServerException, OSError) as error:
                    with lock:
                        outcome.errors[f"{type(error).__name__}: {error}"] += 1
                    continue
                answered = AnsweredAt(before_s, time.monotonic())
                problem = mismatch(outputs, expectation.outputs)
                with lock:
                    if before_s >= warm_s:
                        outcome.answered[model].append(answered)
                    if problem:
                        outcome.wrong[f"wrong: {model}: {problem}"] += 1

    servers = ((http, Transport.HTTP), (grpc, Transport.GRPC))
    threads = [
        threading.Thread(target=ask, args=(number, *servers[number % 2]))
        for number in range(count)
    ]
    for thread in threads:
        thread.start()
    ready.wait(timeout=_GRACE_S)
    parent.send("begun")
    for thread in threads:
        thread.join()
    parent.send(outcome)
