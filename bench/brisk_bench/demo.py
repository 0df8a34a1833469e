"""Asks every sample model over both transports and compares with the expected answers.

``python -m brisk_bench.demo REPOSITORY HTTP_HOST:PORT GRPC_HOST:PORT`` asks a running server.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from tritonclient.utils import InferenceServerException

from brisk_bench.samples.expectations import EXPECTED, ExpectedAnswer, mismatch, read_expectations
from brisk_client.inference import InferenceClient, Transport

_REPEATS = 5
_SHOWN_VALUES = 3


@dataclass(frozen=True, slots=True)
class ShownAnswer:
    """The answer of one model version over one transport.

    ``latency_ms``: median of the requests after the first; None if a request failed.
    ``problem``: why the answer is not right; empty if it is.
    """

    model: str
    version: int
    transport: str
    answer: str
    expected: str
    latency_ms: float | None
    problem: str

    @property
    def right(self) -> bool:
        return not self.problem


def query_samples(repository: Path, *, http_url: str, grpc_url: str) -> list[ShownAnswer]:
    """Ask every generated entry of ``repository``, in the order of their names."""
    entries = sorted(file.parent for file in repository.glob(f"*/{EXPECTED}"))
    questions = [(entry.name, each) for entry in entries for each in read_expectations(entry)]
    with (
        InferenceClient(http_url, Transport.HTTP) as http,
        InferenceClient(grpc_url, Transport.GRPC) as grpc,
    ):
        return [
            ask(client, model, expectation)
            for model, expectation in questions
            for client in (http, grpc)
        ]


def ask(client: InferenceClient, model: str, expectation: ExpectedAnswer) -> ShownAnswer:
    """Ask once for the answer and a few times more for the latency."""
    shown = min(expectation.outputs, key=lambda name: expectation.outputs[name].size)
    answer, latency_ms = "-", None
    try:
        outputs = client.infer(model, expectation.inputs, version=expectation.version)
        latency_ms = _latency_ms(client, model, expectation)
        answer, problem = _excerpt(shown, outputs), mismatch(outputs, expectation.outputs)
    except InferenceServerException as error:
        problem = str(error)
    expected, transport = _excerpt(shown, expectation.outputs), client.transport.value
    return ShownAnswer(
        model, expectation.version, transport, answer, expected, latency_ms, problem
    )


def _latency_ms(client: InferenceClient, model: str, expectation: ExpectedAnswer) -> float:
    times_ms = []
    for _ in range(_REPEATS):
        started_ns = time.perf_counter_ns()
        client.infer(model, expectation.inputs, version=expectation.version)
        times_ms.append((time.perf_counter_ns() - started_ns) / 1e6)
    return statistics.median(times_ms)


def _excerpt(name: str, outputs: Mapping[str, np.ndarray]) -> str:
    """Return the first values of an output: ``-0.51 0.88 -0.19 …``."""
    if name not in outputs:
        return "-"
    flat = outputs[name].reshape(-1)
    values = " ".join(f"{value:.2g}" for value in flat[:_SHOWN_VALUES])
    return values + (" …" if flat.size > _SHOWN_VALUES else "")


def table_of(answers: list[ShownAnswer]) -> Table:
    """Return a table with one line for each answer; it fits 80 columns."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("model", "v.", "via", "answer", "expected", "ok"):
        table.add_column(heading, no_wrap=True)
    table.add_column("latency", justify="right", no_wrap=True)
    for answer in answers:
        table.add_row(
            answer.model,
            str(answer.version),
            answer.transport,
            answer.answer,
            answer.expected,
            "[green]yes[/green]" if answer.right else "[red]NO[/red]",
            "-" if answer.latency_ms is None else f"{answer.latency_ms:.2f} ms",
        )
    return table


def show_samples(console: Console, repository: Path, *, http_url: str, grpc_url: str) -> bool:
    """Ask as ``query_samples`` does and print the answers; True if there are any and all right."""
    with console.status("querying every sample model over HTTP and gRPC …"):
        answers = query_samples(repository, http_url=http_url, grpc_url=grpc_url)
    console.print(table_of(answers))
    wrong = [answer for answer in answers if not answer.right]
    for answer in wrong:
        console.print(f"{answer.model} over {answer.transport}: {answer.problem}", style="red")
    console.print(f"{len(answers) - len(wrong)} of {len(answers)} answers are right")
    return bool(answers) and not wrong


def main(repository: str, http_url: str, grpc_url: str) -> int:
    """Return the exit status: 0 only if there were answers and all were right."""
    console = Console(highlight=False)
    right = show_samples(console, Path(repository), http_url=http_url, grpc_url=grpc_url)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
