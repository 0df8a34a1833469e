"""A real runtime for tests: its directory, its processes, its models, and replies to wait for."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from brisk.errors import BriskError
from brisk.protocol.channel import send_record
from brisk.protocol.records import AttachSlab, LoadModel, Result, TensorForm
from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.protocol.shared_memory import mark_is_set
from brisk.protocol.stub_process import parent_of
from brisk.stub.runtime_client.client import RuntimeClient
from brisk.stub.runtime_client.pending import OutputReader, Reply
from brisk.telemetry.observer import Observer
from support.models.segment_models import info, save
from support.runtime.runtime_processes import processes_started_in
from support.waiting import PATIENCE_S, wait_until

SLOW_INPUT = np.full((500, 500), 0.01, np.float32)


class Answer(Reply):
    """Keeps the answer, counts how often it came, and lets a test wait for it."""

    def __init__(self) -> None:
        self.outputs: dict[str, np.ndarray] = {}
        self.error: BriskError | None = None
        self.times = 0
        self.result: Result | None = None
        self._came = threading.Event()

    def succeed(self, result: Result, read: OutputReader) -> None:
        self.result = result
        self.outputs = {
            form.name: np.frombuffer(read(region), np.float32).reshape(form.shape).copy()
            for form, region in zip(result.form.outputs, result.regions, strict=True)
        }
        self._note()

    def fail(self, error: BriskError) -> None:
        self.error = error
        self._note()

    def _note(self) -> None:
        self.times += 1
        self._came.set()

    @property
    def has_come(self) -> bool:
        return self._came.is_set()

    @property
    def ended_ns(self) -> int:
        """When the worker had computed it, by the clock that all processes share."""
        assert self.result is not None
        return self.result.started_ns + self.result.execution_ns

    def wait(self) -> Answer:
        assert self._came.wait(PATIENCE_S), "no answer"
        return self

    def output(self) -> np.ndarray:
        """Return the only output; fails with the error where there is one."""
        self.wait()
        assert self.error is None, self.error
        (value,) = self.outputs.values()
        return value


def submit_marked(
    connection: RuntimeClient,
    value: np.ndarray,
    job_class: str = "normal",
    deadline_ns: int | None = None,
    arrived_ns: int = 0,
    requests: int = 1,
) -> tuple[int, Answer, memoryview]:
    """Send float32 ``value``, of so many ``requests`` together, as ``x`` and ask for ``y``; return
    the request's number, its answer and its mark."""
    staged = connection.stage((TensorForm("x", "FP32", value.shape),), [value.nbytes])
    if value.nbytes:
        connection.memory(staged.regions[0])[:] = value.tobytes()
    answer = Answer()
    number = connection.submit(
        staged, ["y"], job_class, deadline_ns, answer, arrived_ns=arrived_ns, requests=requests
    )
    return number, answer, connection.memory(staged.mark)


def submit(
    connection: RuntimeClient,
    value: np.ndarray,
    job_class: str = "normal",
    deadline_ns: int | None = None,
    **more: int,
) -> tuple[int, Answer]:
    """Send a request like ``submit_marked``; return its number and its answer."""
    number, answer, _ = submit_marked(connection, value, job_class, deadline_ns, **more)
    return number, answer


def submit_and_see_begin(
    connection: RuntimeClient, job_class: str = "normal"
) -> tuple[Answer, int]:
    """Send a request for the slow model, which runs when this returns; return its answer and
    number."""
    number, answer, mark = submit_marked(connection, SLOW_INPUT, job_class)
    wait_until(lambda: mark_is_set(mark), "its beginning")
    return answer, number


def is_settled(place: RuntimePaths, name: str) -> bool:
    """Return whether what computes the model of this name stays as it is; False while no worker
    answers."""
    with contextlib.suppress(BriskError), Observer(place, Role.FOREGROUND) as observer:
        return any(model.name == name and model.is_settled for model in observer.status().models)
    return False


def infer(connection: RuntimeClient, value: np.ndarray) -> np.ndarray:
    return submit(connection, value)[1].output()


def quick_model(path: Path) -> Path:
    """y = -x for any number of rows of four."""
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    return save(path, nodes, [info("x", "n", 4)], [info("y", "n", 4)])


def slow_model(path: Path, steps: int = 400) -> Path:
    """Products of 500x500 matrices, none of which can be left out: about a second for 400."""
    nodes = []
    previous = "x"
    for step in range(steps):
        nodes.append(helper.make_node("MatMul", ["x", previous], [f"p{step}"]))
        nodes.append(helper.make_node("Softmax", [f"p{step}"], [f"s{step}"]))
        previous = f"s{step}"
    nodes.append(helper.make_node("Identity", [previous], ["y"]))
    return save(path, nodes, [info("x", *SLOW_INPUT.shape)], [info("y", *SLOW_INPUT.shape)])


def endless_model(path: Path, least: float = 0.0) -> Path:
    """``y``, of one value, after as many rounds of a Loop as ``x`` and ``least`` together say."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["goes"]),
            helper.make_node("Sin", ["value"], ["next"]),
        ],
        "body",
        [
            info("round", kind=TensorProto.INT64),
            info("go", kind=TensorProto.BOOL),
            info("value", 1),
        ],
        [info("goes", kind=TensorProto.BOOL), info("next", 1)],
    )
    nodes = [
        helper.make_node("Add", ["x", "least"], ["all"]),
        helper.make_node("Cast", ["all"], ["many"], to=TensorProto.INT64),
        helper.make_node("Reshape", ["many", "none"], ["rounds"]),
        helper.make_node("Loop", ["rounds", "", "x"], ["y"], body=body),
    ]
    constants = {"none": np.empty(0, np.int64), "least": np.array([least], np.float32)}
    return save(path, nodes, [info("x", 1)], [info("y", 1)], constants)


def describe(path: Path, **changes: object) -> LoadModel:
    values: dict[str, object] = {
        "name": path.stem,
        "version": 1,
        "path": str(path),
        "max_batch_size": 0,
        "batching": False,
        "max_queue_size": 64,
        "job_class": "normal",
    }
    return LoadModel(**{**values, **changes})  # type: ignore[arg-type]


def processes_of(place: RuntimePaths) -> list[int]:
    """Return the supervisor's number first, then its workers'; ended ones are left out."""
    processes = []
    for process in processes_started_in(place.base):
        with contextlib.suppress(OSError):
            if b"brisk.runtime" in Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0"):
                processes.append(process)
    return sorted(processes, key=lambda process: parent_of(process) in processes)


def supervisor_of(place: RuntimePaths) -> int:
    return processes_of(place)[0]


def worker_of(place: RuntimePaths) -> int:
    wait_until(lambda: len(processes_of(place)) == 2, "a worker")
    return processes_of(place)[1]


def background_worker_of(place: RuntimePaths) -> int | None:
    """Return the background worker's process; None: there is none."""
    for process in processes_of(place):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{process}/comm").read_text().strip() == "brisk-back":
                return process
    return None


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)


def end_processes(place: RuntimePaths) -> None:
    for process in processes_of(place):
        with contextlib.suppress(ProcessLookupError):
            kill(process)
    wait_until(lambda: not processes_of(place), "the end of the runtime")


@contextlib.contextmanager
def own_place() -> Iterator[RuntimePaths]:
    """Yield where a runtime may be, which is ended afterwards. The path is short."""
    parent = Path(tempfile.mkdtemp(prefix="brisk-"))
    place = RuntimePaths(parent / "runtime", "cpu")
    try:
        yield place
    finally:
        end_processes(place)
        shutil.rmtree(parent)


@contextlib.contextmanager
def opened(
    place: RuntimePaths, model: LoadModel, log: Callable[[str], object] = lambda text: None
) -> Iterator[RuntimeClient]:
    """Yield a connection that has loaded ``model``; it is closed afterwards. ``log``: gets what
    the runtime logs to it."""
    connection = RuntimeClient(place, model, lambda level, text: log(text))
    connection.open()
    try:
        yield connection
    finally:
        connection.close()


def memory_file(size: int = 4096, seals: int = fcntl.F_SEAL_SHRINK) -> int:
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def attach(connection: socket.socket, slab: int = 0) -> None:
    descriptor = memory_file()
    send_record(connection, AttachSlab(slab, 4096), descriptor)
    os.close(descriptor)


@contextlib.contextmanager
def building_runtime(
    folder: Path, environment: pytest.MonkeyPatch, threads: int
) -> Iterator[RuntimePaths]:
    """Yield the place of a runtime that makes prepared forms and has a small model, in ``folder``,
    loaded."""
    environment.setenv("BRISK_ARTEFACTS", "build")
    environment.setenv("BRISK_THREADS", str(threads))
    model = describe(quick_model(folder / "other.onnx"))
    with own_place() as place, opened(place, model):
        yield place
