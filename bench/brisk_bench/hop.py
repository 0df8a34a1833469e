"""`brisk bench hop`: what a request pays between stub and worker, apart from computing.

A real connection to a real runtime, asked for the maximum of a 600 KB image. The hop begins
before the input is staged and ends where the reply is told of the answer; the execution that the
worker reports is taken off.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from brisk.protocol.records import LoadModel, TensorForm
from brisk.protocol.runtime_paths import RuntimePaths
from brisk.stub.runtime_client.client import EYES_OPEN_NS, RuntimeClient
from brisk_bench.harness.command_line import bars, benchmark_parser, run_command
from brisk_bench.harness.machine import new_report
from brisk_bench.harness.report import Report, check_limit
from brisk_bench.harness.surroundings import environment, wait_until_gone
from brisk_bench.harness.tails import quantile, tail_or_shortage
from brisk_bench.harness.timed_reply import TimedReply
from brisk_bench.samples.writer import GraphWriter

LIMIT_MS = 0.15
"""The most of the hop's median, with requests back to back."""

SHAPE = (1, 3, 224, 224)

IDLE_S = 5e-3

NOTES = (
    "hop = from before `stage` to `Reply.succeed`, less the worker's execution time",
    "stage: memory and records for the input; submit: the request encoded and sent; copy: the "
    "input into shared memory; queue: admitted to started, as the worker reports it; remainder: "
    "both wake-ups, reading and decoding, admission, the answer's way back",
    "each part has percentiles of its own, so the parts' do not add up to the hop's",
)


def parts_of(*, total: int, execution: int, **parts: int) -> dict[str, int]:
    """Return the hop of one request, its parts, and the execution, in nanoseconds.

    The hop excludes the execution. ``total``: from ``stage`` to ``succeed``; ``parts``: those that
    are timed.
    """
    hop = total - execution
    remainder = hop - sum(parts.values())
    return {"hop": hop, **parts, "remainder": remainder, "execution": execution}


def run(quick: bool = False, threads: int = 1) -> Report:
    """Measure with a runtime of ``threads`` threads."""
    report = new_report("hop", ("torch", "numpy"), NOTES, threads=threads)
    rounds, busy, paused = (3, 500, 50) if quick else (10, 1000, 150)
    back_to_back: list[dict[str, int]] = []
    with_pauses: list[dict[str, int]] = []
    image = np.random.default_rng(0).standard_normal(SHAPE, np.float32)
    with _connection(threads) as connection:
        _ask(connection, image, 200, 0.0)
        for _ in range(rounds):
            back_to_back += _ask(connection, image, busy, 0.0)
            with_pauses += _ask(connection, image, paused, IDLE_S)
    report.rows += summarise_parts("back to back", back_to_back)
    report.rows += summarise_parts(f"{IDLE_S * 1e3:g} ms idle between", with_pauses)
    text = f"p50 of the hop back to back, {image.nbytes / 1e3:.0f} KB input, ms"
    report.checks.append(check_limit(text, report.rows[0]["p50_us"] / 1e3, "<=", LIMIT_MS))
    return report


def main(arguments: Sequence[str]) -> int:
    parser = benchmark_parser("hop", __doc__, "fewer requests")
    parser.add_argument("--threads", type=int, default=1, help="threads of the runtime")
    return run_command(parser, arguments, run, bars("p50_us", "requests", "part"))


def summarise_parts(requests: str, samples: Sequence[dict[str, int]]) -> list[dict[str, Any]]:
    """Return a row for each part, the hop first, with percentiles over ``samples`` (not empty)."""
    by_part = {part: [each[part] for each in samples] for part in samples[0]}
    return [
        {
            "requests": requests,
            "part": part,
            "p50_us": quantile(values, 0.5) / 1e3,
            "p90_us": quantile(values, 0.9) / 1e3,
            "p99_us": tail_or_shortage(values, 0.99, 1e-3),
            "runs": len(values),
        }
        for part, values in by_part.items()
    ]


def _ask(
    connection: RuntimeClient, image: np.ndarray, count: int, pause_s: float
) -> list[dict[str, int]]:
    samples = []
    for _ in range(count):
        reply = TimedReply()
        started_ns = time.monotonic_ns()
        staged = connection.stage((TensorForm("image", "FP32", image.shape),), [image.nbytes])
        staged_ns = time.monotonic_ns()
        memory = np.frombuffer(connection.memory(staged.regions[0]), np.float32)
        np.copyto(memory, image.reshape(-1))
        copied_ns = time.monotonic_ns()
        connection.submit(staged, ("greatest",), "normal", None, reply)
        submitted_ns = time.monotonic_ns()
        connection.attend("normal", reply.is_answered, EYES_OPEN_NS)  # as a stub does
        result = reply.wait()
        samples.append(
            parts_of(
                stage=staged_ns - started_ns,
                copy=copied_ns - staged_ns,
                submit=submitted_ns - copied_ns,
                queue=result.queue_ns,
                execution=result.execution_ns,
                total=reply.answered_ns - started_ns,
            )
        )
        if pause_s:
            time.sleep(pause_s)
    return samples


@contextmanager
def _connection(threads: int) -> Iterator[RuntimeClient]:
    """Give a connection, with the model loaded, to a runtime of its own."""
    with tempfile.TemporaryDirectory(prefix="brisk-hop-") as folder:
        file = Path(folder) / "model.onnx"
        onnx.save(_model(), file)
        description = LoadModel("hop", 1, str(file), 0, False, 100, "normal")
        place = RuntimePaths(Path(folder) / "runtime", "cpu")
        connection = RuntimeClient(place, description, lambda level, text: None)
        with environment({"BRISK_THREADS": str(threads), "BRISK_IDLE_EXIT_S": "0.2"}):
            connection.open()
            try:
                yield connection
            finally:
                connection.close()
                wait_until_gone(place)


def _model() -> onnx.ModelProto:
    """Return a model of an image's greatest value: it reads all input, answers four bytes."""
    graph = GraphWriter("hop", opset=18)
    image = graph.input("image", "float32", SHAPE)
    graph.output(graph.add("ReduceMax", image, keepdims=0), "greatest", "float32", ())
    return graph.model()
