"""One start of a server: from the kernel's ``exec`` to the first answer, and then its end.

The client, the same for every side, tries to connect every millisecond, asks whether the model is
ready as often, and sends the request that it has written down before, over HTTP or gRPC.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from tritonclient import grpc, utils
from tritonclient import http as triton_http
from tritonclient.utils import InferenceServerException

from brisk.triton.launch import ServerFailedError, TritonServer
from brisk.triton.locate import ServerInstallation
from brisk_client.benchmarks.harness.served_server import end_processes
from brisk_client.inference import InferenceClient, Transport

START_TIMEOUT_S = 300.0
POLL_S = 0.001

_EXEC_POLL_S = 0.0005
_CALL_TIMEOUT_S = 120.0

Arrays: TypeAlias = Mapping[str, np.ndarray]

GiveUp: TypeAlias = Callable[[], None]
"""Called while waiting; raises where there is nothing to wait for any more."""

Reached: TypeAlias = tuple[float, float, Arrays]
"""When the model was ready and when the answer had come, by ``time.perf_counter``; the answer."""


@dataclass(frozen=True, slots=True)
class StartTimes:
    """Seconds from the server's ``exec``: to the model's being ready, and to its answer."""

    ready_s: float
    first_s: float
    outputs: Arrays


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """What is started with ``threads``. ``environment`` adds to this process's."""

    installation: ServerInstallation
    repository: Path
    backends: Path
    threads: int
    environment: Mapping[str, str]
    options: Sequence[str]


def time_start(
    command: ServerCommand, model: str, inputs: Arrays, transport: Transport
) -> StartTimes:
    """Start a server whose runtime is new, ask it once, end it.

    Nothing of it is left afterwards: no process that has its runtime's directory in its
    environment. Raises ServerFailedError where it ends or is not ready in START_TIMEOUT_S, and
    InferenceServerException where it answers with an error.
    """
    ask = _ask_http if transport is Transport.HTTP else _ask_grpc
    with (
        runtime_folder() as (folder, runtime),
        started_server(command, folder, runtime) as (server, begin_s),
    ):
        url = server.endpoints.http if transport is Transport.HTTP else server.endpoints.grpc
        if url is None:
            raise ServerFailedError(f"the server offers no {transport.value}")
        ready_s, answered_s, outputs = ask(url, model, inputs, lambda: give_up(server, begin_s))
    return StartTimes(ready_s - begin_s, answered_s - begin_s, outputs)


def common_environment(threads: int) -> dict[str, str]:
    """What every side's server finds in its environment."""
    return {"BRISK_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}


@contextlib.contextmanager
def runtime_folder() -> Iterator[tuple[Path, Path]]:
    """A folder and in it the place of a runtime, whose processes have ended behind it."""
    with tempfile.TemporaryDirectory(prefix="brisk-start-") as folder:
        runtime = Path(folder) / "runtime"
        try:
            yield Path(folder), runtime
        finally:
            end_processes(runtime)


@contextlib.contextmanager
def started_server(
    command: ServerCommand, folder: Path, runtime: Path
) -> Iterator[tuple[TritonServer, float]]:
    """The server, and when its process became it, by ``time.perf_counter``. Its log lies in
    ``folder``, its runtime in ``runtime``."""
    server = TritonServer(
        command.installation,
        command.repository,
        command.backends,
        log=folder / "tritonserver.log",
        options=["--exit-timeout-secs=10", *command.options],
        environment={
            **os.environ,
            **common_environment(command.threads),
            **command.environment,
            "BRISK_RUNTIME_DIR": str(runtime),
        },
    )
    try:
        server.start()
        yield server, _wait_for_exec(server, command.installation.executable)
    finally:
        server.stop()


def _wait_for_exec(server: TritonServer, executable: Path) -> float:
    """Before it is the server, it is the interpreter that ties it to this process, some 10 ms."""
    wanted = executable.resolve()
    while True:
        now_s = time.perf_counter()
        with contextlib.suppress(OSError):
            if Path(os.readlink(f"/proc/{server.pid}/exe")) == wanted:
                return now_s
        if server.returncode is not None:
            raise ServerFailedError(f"the server ended at once: {reason_in(server.log_text())}")
        time.sleep(_EXEC_POLL_S)


def give_up(server: TritonServer, begin_s: float) -> None:
    """Raises ServerFailedError where the server will not answer any more."""
    if server.returncode is not None:
        failed = f"ended with status {server.returncode}"
    elif time.perf_counter() - begin_s > START_TIMEOUT_S:
        failed = f"was not ready within {START_TIMEOUT_S:g} s"
    else:
        return
    raise ServerFailedError(f"tritonserver {failed}: {reason_in(server.log_text())}")


def reason_in(log: str) -> str:
    """Why the server gave up: what it says of its model, else its last error or last line."""
    lines = [line for line in log.splitlines() if line.strip() and not line.startswith(("|", "+"))]
    errors = [line for line in lines if line.startswith("E")]
    of_model = [line for line in errors if "failed to load" in line]
    found = (of_model or errors[-1:] or lines[-1:] or ["it said nothing"])[0]
    return found.partition("] ")[2] or found


def _ask_http(url: str, model: str, inputs: Arrays, give_up: GiveUp) -> Reached:
    described = []
    for name, array in inputs.items():
        kind = utils.np_to_triton_dtype(array.dtype)
        described.append(triton_http.InferInput(name, list(array.shape), kind))
        described[-1].set_data_from_numpy(array)
    client = triton_http.InferenceServerClient
    body, header_size = client.generate_request_body(described)
    headers = {"Content-Type": "application/octet-stream"}
    if header_size is not None:
        headers["Inference-Header-Content-Length"] = str(header_size)
    _wait_for_port(url, give_up)
    connection = http.client.HTTPConnection(url, timeout=_CALL_TIMEOUT_S)
    with contextlib.closing(connection):
        while True:
            connection.request("GET", f"/v2/models/{model}/ready")
            answer = connection.getresponse()
            answer.read()
            if answer.status == 200:
                break
            give_up()
            time.sleep(POLL_S)
        ready_s = time.perf_counter()
        connection.request("POST", f"/v2/models/{model}/infer", body, headers)
        answer = connection.getresponse()
        content = answer.read()
        answered_s = time.perf_counter()
    if answer.status != 200:
        raise InferenceServerException(content.decode(errors="replace"), str(answer.status))
    size = answer.getheader("Inference-Header-Content-Length")
    result = client.parse_response_body(content, header_length=None if size is None else int(size))
    names = [output["name"] for output in result.get_response()["outputs"]]
    return ready_s, answered_s, {name: result.as_numpy(name) for name in names}


def _ask_grpc(url: str, model: str, inputs: Arrays, give_up: GiveUp) -> Reached:
    _wait_for_port(url, give_up)  # a channel waits a second before it tries again
    with InferenceClient(url, Transport.GRPC, _CALL_TIMEOUT_S) as client:
        with contextlib.closing(grpc.InferenceServerClient(url)) as control:
            while not control.is_model_ready(model):
                give_up()
                time.sleep(POLL_S)
        ready_s = time.perf_counter()
        outputs = client.infer(model, inputs)
        return ready_s, time.perf_counter(), outputs


def _wait_for_port(url: str, give_up: GiveUp) -> None:
    host, _, port = url.rpartition(":")
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=_CALL_TIMEOUT_S).close()
        except ConnectionRefusedError:
            give_up()
            time.sleep(POLL_S)
        else:
            return
