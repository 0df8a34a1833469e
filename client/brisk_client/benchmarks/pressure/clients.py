"""Clients that ask without pause: threads of one child process, half HTTP, half gRPC.

A process of its own, so that the clients' interpreter lock delays no measurement of the parent.
Through most of the warm-up all ask the same model at once, one model after the other: every buffer
gets the size that it can come to need. Its answers are checked, too, but their times are left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tritonclient.utils import InferenceServerException

from brisk_client.demo import difference
from brisk_client.inference import InferenceClient, Transport
from brisk_client.samples.expectations import EXPECTED, ExpectedAnswer, read_expectations

_GRACE_S = 90.0
_SHOWN_ERRORS = 5

_TOGETHER = 0.6
"""Share of the warm-up in which all ask the same model."""


@dataclass(slots=True)
class ClientOutcome:
    """What the clients saw: times by model, answers that were wrong, errors by their text."""

    latency_s: dict[str, list[float]] = field(default_factory=dict)
    wrong: int = 0
    errors: dict[str, int] = field(default_factory=dict)


class PressureClients:
    """``count`` clients in a child process; a context manager that ends it."""

    def __init__(
        self,
        repository: Path,
        http: str,
        grpc: str,
        *,
        count: int,
        warm_up_s: float,
        duration_s: float,
    ) -> None:
        """Start; returns when all are connected and begin, or when one could not."""
        self._timeout_s = warm_up_s + duration_s + _GRACE_S
        arguments = [str(repository), http, grpc, str(count), str(warm_up_s), str(duration_s)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, *arguments], stdout=subprocess.PIPE, bufsize=0
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def __enter__(self) -> PressureClients:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def wait(self) -> ClientOutcome:
        """What all clients saw. Raises RuntimeError where the child fails, TimeoutExpired."""
        text, _ = self._process.communicate(timeout=self._timeout_s)
        if self._process.returncode:
            raise RuntimeError(f"the clients ended with status {self._process.returncode}")
        return ClientOutcome(**json.loads(text))


@dataclass(slots=True)
class _Tally:
    """All clients' outcomes; the lock guards every field."""

    latency_s: dict[str, list[float]] = field(default_factory=dict)
    wrong: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, model: str, seconds: float | None, problem: str) -> None:
        with self.lock:
            if seconds is not None:
                self.latency_s.setdefault(model, []).append(seconds)
            if problem:
                self.wrong += 1
                self.errors[f"wrong: {model}: {problem}"] += 1

    def add_error(self, text: str) -> None:
        with self.lock:
            self.errors[text] += 1


def _ask(
    number: int,
    url: str,
    transport: Transport,
    questions: list[tuple[str, ExpectedAnswer]],
    times_s: tuple[float, float],
    ready: threading.Barrier,
    tally: _Tally,
) -> None:
    """Client ``number``: the questions in turn, from its own first one, until the time is over.

    ``times_s``: of the warm-up, and after it.
    """
    warm_up_s, duration_s = times_s
    with InferenceClient(url, transport) as client:
        ready.wait(timeout=_GRACE_S)
        begun_s = time.monotonic()
        together_s = begun_s + _TOGETHER * warm_up_s
        warm_s = begun_s + warm_up_s
        end_s = warm_s + duration_s
        position = 0
        while time.monotonic() < end_s:
            before_s = time.monotonic()
            if before_s < together_s:
                left = (together_s - before_s) / (together_s - begun_s)
                model, expectation = questions[_place(left, len(questions))]
            else:
                model, expectation = questions[(position + number) % len(questions)]
                position += 1
            try:
                outputs = client.infer(model, expectation.inputs, version=expectation.version)
            except (InferenceServerException, OSError) as error:
                tally.add_error(f"{type(error).__name__}: {error}")
                continue
            seconds = time.monotonic() - before_s if before_s >= warm_s else None
            tally.add(model, seconds, difference(outputs, expectation.outputs))


def _place(left: float, count: int) -> int:
    """Which of ``count`` equal parts it is when the share ``left`` of the whole is left."""
    return min(count - 1, int((1 - left) * count))


def _serve(
    repository: Path, http: str, grpc: str, count: int, times_s: tuple[float, float]
) -> None:
    entries = sorted(file.parent for file in repository.glob(f"*/{EXPECTED}"))
    questions = [(entry.name, each) for entry in entries for each in read_expectations(entry)]
    tally = _Tally()
    ready = threading.Barrier(count + 1)
    threads = []
    for number in range(count):
        transport, url = ((Transport.HTTP, http), (Transport.GRPC, grpc))[number % 2]
        arguments = (number, url, transport, questions, times_s, ready, tally)
        threads.append(threading.Thread(target=_ask, args=arguments))
        threads[-1].start()
    ready.wait(timeout=_GRACE_S)
    print("begun", flush=True)
    for thread in threads:
        thread.join()
    shown = dict(tally.errors.most_common(_SHOWN_ERRORS))
    shown["in all"] = sum(tally.errors.values())
    print(json.dumps(asdict(ClientOutcome(tally.latency_s, tally.wrong, shown))))


if __name__ == "__main__":
    folder, http_url, grpc_url, clients, warm_up, seconds = sys.argv[1:]
    _serve(Path(folder), http_url, grpc_url, int(clients), (float(warm_up), float(seconds)))
