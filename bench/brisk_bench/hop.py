"""`brisk bench hop`: what a request pays between stub and worker, apart from computing.

A real connection to a real runtime, asked for the maximum of a 600 KB image. The hop begins
before the input is staged and ends where the reply is told of the answer; the execution that the
worker reports is taken off. Then a small network: the processor time that the runtime takes for a
request, alone and as one of eight that travel together, beside what ONNX Runtime takes for the
same rows in this process.
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
import onnxruntime

from brisk.protocol.records import LoadModel, TensorForm
from brisk.protocol.runtime_paths import RuntimePaths
from brisk.stub.runtime_client.client import EYES_OPEN_NS, RuntimeClient
from brisk_bench.harness.command_line import bars, benchmark_parser, run_command
from brisk_bench.harness.machine import new_report
from brisk_bench.harness.processes import processes_of, processor_s_of
from brisk_bench.harness.report import Report, check_limit
from brisk_bench.harness.surroundings import environment, wait_until_gone, wait_until_settled
from brisk_bench.harness.tails import quantile, tail_or_shortage
from brisk_bench.harness.timed_reply import TimedReply
from brisk_bench.samples.writer import GraphWriter

LIMIT_MS = 0.15
"""The most of the hop's median, with requests back to back."""

SHAPE = (1, 3, 224, 224)

IDLE_S = 5e-3

FEATURES = 784
"""The values of a row of the small network."""

PROCESSOR_LIMITS_US = {1: 60.0, 8: 25.0}
"""The most processor time of the runtime beside the run, for each of so many requests that travel
together."""

GAP_S = 3e-4
"""The pause between two requests to the small network, as a server and its stub make one: the
worker does not await the next one with open eyes."""

NOTES = (
    "hop = from before `stage` to `Reply.succeed`, less the worker's execution time",
    "stage: memory and records for the input; submit: the request encoded and sent; copy: the "
    "input into shared memory; queue: admitted to started, as the worker reports it; remainder: "
    "both wake-ups, reading and decoding, admission, the answer's way back",
    "each part has percentiles of its own, so the parts' do not add up to the hop's",
    "processor time: of all processes of the runtime, a request; the run: of a thread of this "
    "process that has ONNX Runtime compute the same rows as often, with the same pauses",
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
    report = new_report("hop", ("onnxruntime", "numpy"), NOTES, threads=threads)
    rounds, busy, paused = (3, 500, 50) if quick else (10, 1000, 150)
    back_to_back: list[dict[str, int]] = []
    with_pauses: list[dict[str, int]] = []
    image = np.random.default_rng(0).standard_normal(SHAPE, np.float32)
    with _connection(threads, _greatest(), 0) as (connection, _):
        _ask(connection, image, 200, 0.0)
        for _ in range(rounds):
            back_to_back += _ask(connection, image, busy, 0.0)
            with_pauses += _ask(connection, image, paused, IDLE_S)
    report.rows += summarise_parts("back to back", back_to_back)
    report.rows += summarise_parts(f"{IDLE_S * 1e3:g} ms idle between", with_pauses)
    text = f"p50 of the hop back to back, {image.nbytes / 1e3:.0f} KB input, ms"
    report.checks.append(check_limit(text, report.rows[0]["p50_us"] / 1e3, "<=", LIMIT_MS))
    for row in _processor_rows(1000 if quick else 10000):
        limit_us = PROCESSOR_LIMITS_US[row["together"]]
        text = f"processor time of the runtime beside the run, {row['together']} together, us each"
        report.checks.append(check_limit(text, row["beside_us"], "<=", limit_us))
        report.rows.append(row)
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


def _processor_rows(records: int) -> list[dict[str, Any]]:
    """Return a row for each number of requests that travel together."""
    rows = []
    with _connection(1, _small(), 64) as (connection, runtime):
        _ask_small(connection, np.ones((1, FEATURES), np.float32), 5)
        wait_until_settled(RuntimePaths(runtime, "cpu"), "hop", "normal")
        session = onnxruntime.InferenceSession(_small().SerializeToString(), _one_thread())
        for together in PROCESSOR_LIMITS_US:
            features = np.random.default_rng(0).standard_normal((together, FEATURES), np.float32)
            _ask_small(connection, features, 500)
            used_s = -_processor_s(runtime)
            _ask_small(connection, features, records)
            used_s += _processor_s(runtime)
            run_s = _run_s(session, features, records)
            each_us = 1e6 / (records * together)
            rows.append(
                {
                    "together": together,
                    "processor_us": used_s * each_us,
                    "run_us": run_s * each_us,
                    "beside_us": (used_s - run_s) * each_us,
                    "runs": records,
                }
            )
    return rows


def _ask_small(connection: RuntimeClient, features: np.ndarray, count: int) -> None:
    """Send records of as many requests as there are rows, one record after the other."""
    form = (TensorForm("features", "FP32", features.shape),)
    for _ in range(count):
        reply = TimedReply()
        staged = connection.stage(form, [features.nbytes])
        memory = np.frombuffer(connection.memory(staged.regions[0]), np.float32)
        np.copyto(memory, features.reshape(-1))
        connection.submit(staged, ("scores",), "normal", None, reply, requests=len(features))
        connection.attend("normal", reply.is_answered, EYES_OPEN_NS)
        reply.wait()
        time.sleep(GAP_S)


def _processor_s(runtime: Path) -> float:
    return sum(map(processor_s_of, processes_of(runtime)))


def _run_s(session: onnxruntime.InferenceSession, features: np.ndarray, count: int) -> float:
    """Return the processor time of ``count`` runs in this thread, with pauses between them."""
    used_ns = 0
    for _ in range(count):
        begun_ns = time.thread_time_ns()
        session.run(None, {"features": features})
        used_ns += time.thread_time_ns() - begun_ns
        time.sleep(GAP_S)
    return used_ns / 1e9


def _one_thread() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return options


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
def _connection(
    threads: int, model: onnx.ModelProto, most_rows: int
) -> Iterator[tuple[RuntimeClient, Path]]:
    """Give a connection, with the model loaded, to a runtime of its own, and that one's folder.

    ``most_rows``: the entry's ``max_batch_size``.
    """
    with tempfile.TemporaryDirectory(prefix="brisk-hop-") as folder:
        file, runtime = Path(folder) / "model.onnx", Path(folder) / "runtime"
        onnx.save(model, file)
        description = LoadModel("hop", 1, str(file), most_rows, False, 100, "normal")
        place = RuntimePaths(runtime, "cpu")
        connection = RuntimeClient(place, description, lambda level, text: None)
        variables = {
            "BRISK_THREADS": str(threads),
            "BRISK_IDLE_EXIT_S": "0.2",
            "BRISK_RUNTIME_DIR": str(runtime),
        }
        with environment(variables):
            connection.open()
            try:
                yield connection, runtime
            finally:
                connection.close()
                wait_until_gone(place)


def _greatest() -> onnx.ModelProto:
    """Return a model of an image's greatest value: it reads all input, answers four bytes."""
    graph = GraphWriter("hop", opset=18)
    image = graph.input("image", "float32", SHAPE)
    graph.output(graph.add("ReduceMax", image, keepdims=0), "greatest", "float32", ())
    return graph.model()


def _small() -> onnx.ModelProto:
    """Return a network of one layer."""
    graph = GraphWriter("small", opset=18)
    features = graph.input("features", "float32", ("rows", FEATURES))
    weights = np.random.default_rng(1).standard_normal((FEATURES, 10), np.float32)
    scores = graph.add("MatMul", features, graph.weight(weights))
    graph.output(scores, "scores", "float32", ("rows", 10))
    return graph.model()
