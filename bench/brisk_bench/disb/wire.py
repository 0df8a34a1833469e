"""A stub's own connection to a real runtime, without Triton in between, and workers' counts.

A request begins where a stub's does: before memory for its inputs is allocated and filled. Both
ends read the same monotonic clock.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from brisk.protocol.records import LoadModel, Sample, TensorForm
from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.stub.runtime_client.client import RuntimeClient
from brisk.telemetry import metrics
from brisk.telemetry.observer import Observer
from brisk_bench.harness.surroundings import environment, wait_until_gone, wait_until_settled
from brisk_bench.harness.timed_reply import TimedReply

IDLE_EXIT_S = "0.2"

COUNTED = (metrics.PREEMPTIONS.name, metrics.FREEZES.name, metrics.HELD_SECONDS.name)
"""Metrics of interruptions: a normal run parked; a best-effort segment stopped half-way; a
best-effort run held before a segment."""


@dataclass(frozen=True, slots=True)
class Timed:
    """One request, with times of the monotonic clock.

    ``submitted_ns``: before anything of it was done.
    ``outputs``: the answer's bytes.
    """

    submitted_ns: int
    started_ns: int
    answered_ns: int
    execution_ns: int
    outputs: bytes

    @property
    def total_ns(self) -> int:
        return self.answered_ns - self.submitted_ns


class ProbedModel:
    """A model of a probed runtime, asked with one fixed input. Used by one thread at a time."""

    def __init__(
        self, place: RuntimePaths, name: str, connection: RuntimeClient, model: onnx.ModelProto
    ) -> None:
        self.place = place
        self._name = name
        self._connection = connection
        self._input = input_of(model)
        self._output = model.graph.output[0].name

    def submit(self, job_class: str) -> tuple[int, TimedReply]:
        """Send a request as a stub does; return when that began, and its reply."""
        reply = TimedReply()
        array = self._input
        submitted_ns = time.monotonic_ns()
        staged = self._connection.stage((TensorForm("x", "FP32", array.shape),), [array.nbytes])
        memory = np.frombuffer(self._connection.memory(staged.regions[0]), np.float32)
        np.copyto(memory, array.reshape(-1))
        self._connection.submit(
            staged, (self._output,), job_class, None, reply, arrived_ns=submitted_ns
        )
        return submitted_ns, reply

    def ask(self, job_class: str) -> Timed:
        return finish(*self.submit(job_class))

    def settle(self, job_class: str, runs: int) -> Timed:
        """Ask until its kernels change no more, then ``runs`` times; return the last request."""
        self.ask(job_class)
        wait_until_settled(self.place, self._name, job_class)
        return [self.ask(job_class) for _ in range(runs)][-1]


def input_of(model: onnx.ModelProto) -> np.ndarray:
    """Return the same float32 numbers each time, in the shape of the model's one input."""
    shape = [size.dim_value for size in model.graph.input[0].type.tensor_type.shape.dim]
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def finish(submitted_ns: int, reply: TimedReply) -> Timed:
    """Wait for the answer to a request; return its times."""
    result = reply.wait()
    return Timed(
        submitted_ns, result.started_ns, reply.answered_ns, result.execution_ns, reply.outputs
    )


@contextlib.contextmanager
def probed_runtime(
    models: Mapping[str, onnx.ModelProto], variables: Mapping[str, str]
) -> Iterator[dict[str, ProbedModel]]:
    """Start a runtime with ``models`` loaded (input ``x``, one output); give the models by name.

    ``variables``: added to the environment that the runtime starts with.
    """
    with (
        tempfile.TemporaryDirectory(prefix="brisk-probe-") as folder,
        contextlib.ExitStack() as on,
    ):
        place = RuntimePaths(Path(folder) / "runtime", "cpu")
        on.callback(wait_until_gone, place)
        own = {"BRISK_IDLE_EXIT_S": IDLE_EXIT_S, "BRISK_ARTEFACTS": "off"}
        on.enter_context(environment({**variables, **own}))
        probed = {}
        for name, model in models.items():
            file = Path(folder) / f"{name}.onnx"
            onnx.save(model, file)
            description = LoadModel(name, 1, str(file), 0, False, 100, "normal")
            connection = RuntimeClient(place, description, lambda level, text: None)
            connection.open()
            on.callback(connection.close)
            probed[name] = ProbedModel(place, name, connection, model)
        yield probed


def interrupt(
    urgent: ProbedModel, background: ProbedModel, job_class: str, moment_s: float
) -> tuple[Timed, Timed]:
    """Send a real-time request ``moment_s`` after one of ``job_class``.

    Returns both, the real-time one first.
    """
    pending = background.submit(job_class)
    time.sleep(moment_s)
    return urgent.ask("realtime"), finish(*pending)


@contextlib.contextmanager
def counting_interruptions(place: RuntimePaths) -> Iterator[Callable[[], bool]]:
    """Give a function that says whether a run was interrupted since its last call.

    It compares what the workers themselves count. Observing the background worker starts one, so a
    best-effort request should have come before.
    """
    with Observer(place, Role.FOREGROUND) as first, Observer(place, Role.BACKGROUND) as second:

        def counts() -> list[int]:
            return [counted(observer.statistics()) for observer in (first, second)]

        current = counts()

        def has_more() -> bool:
            nonlocal current
            before, current = current, counts()
            return current != before

        yield has_more


def counted(samples: Sequence[Sample]) -> int:
    """Return the sum of a worker's COUNTED: it grows if a run is interrupted, and only then."""
    return sum(sample.values[0] for sample in samples if sample.metric in COUNTED)
