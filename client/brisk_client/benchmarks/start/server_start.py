"""One start of a server: from the kernel's ``exec`` to the first answer, and then its end."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from brisk.triton.launch import ServerFailedError, TritonServer
from brisk.triton.locate import ServerInstallation
from brisk_client.benchmarks.harness.served_server import end_processes
from brisk_client.benchmarks.start.polling import first_answer
from brisk_client.inference import Transport

START_TIMEOUT_S = 300.0

_EXEC_POLL_S = 0.0005


@dataclass(frozen=True, slots=True)
class StartTimes:
    """Seconds from the server's ``exec``: to the model's being ready, and to its answer."""

    ready_s: float
    first_s: float
    outputs: Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """What is started. ``environment`` adds to this process's."""

    installation: ServerInstallation
    repository: Path
    backends: Path
    environment: Mapping[str, str]
    options: Sequence[str]


def time_start(
    command: ServerCommand, model: str, inputs: Mapping[str, np.ndarray], transport: Transport
) -> StartTimes:
    """Start a server whose runtime is new, ask it once, end it.

    Nothing of it is left afterwards: no process that has its runtime's directory in its
    environment. Raises ServerFailedError where it ends or is not ready in START_TIMEOUT_S, and
    InferenceServerException where it answers with an error.
    """
    with runtime_folder() as (folder, runtime):
        server = TritonServer(
            command.installation,
            command.repository,
            command.backends,
            log=folder / "tritonserver.log",
            options=["--exit-timeout-secs=10", *command.options],
            environment={
                **os.environ,
                **command.environment,
                "BRISK_RUNTIME_DIR": str(runtime),
            },
        )
        try:
            server.start()
            begin_s = wait_for_exec(server, command.installation.executable)
            url = server.endpoints.http if transport is Transport.HTTP else server.endpoints.grpc
            if url is None:
                raise ServerFailedError(f"the server offers no {transport.value}")
            reached = first_answer(url, transport, model, inputs, lambda: give_up(server, begin_s))
        finally:
            server.stop()
    return StartTimes(reached.ready_s - begin_s, reached.answered_s - begin_s, reached.outputs)


@contextlib.contextmanager
def runtime_folder() -> Iterator[tuple[Path, Path]]:
    """A folder and in it the place of a runtime, whose processes have ended behind it."""
    with tempfile.TemporaryDirectory(prefix="brisk-start-") as folder:
        runtime = Path(folder) / "runtime"
        try:
            yield Path(folder), runtime
        finally:
            end_processes(runtime)


def wait_for_exec(server: TritonServer, executable: Path) -> float:
    """When the process that was started became the server, by ``time.perf_counter``.

    Before that it is the interpreter that ties the server to this process, some 10 ms.
    """
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
        status = server.returncode
        why = reason_in(server.log_text())
        raise ServerFailedError(f"tritonserver ended with status {status}: {why}")
    if time.perf_counter() - begin_s > START_TIMEOUT_S:
        why = reason_in(server.log_text())
        raise ServerFailedError(f"tritonserver was not ready within {START_TIMEOUT_S:g} s: {why}")


def reason_in(log: str) -> str:
    """Why the server gave up: what it says of its model, else its last error or last line."""
    lines = [line for line in log.splitlines() if line.strip() and not line.startswith(("|", "+"))]
    errors = [line for line in lines if line.startswith("E")]
    of_model = [line for line in errors if "failed to load" in line]
    found = (of_model or errors[-1:] or lines[-1:] or ["it said nothing"])[0]
    return found.partition("] ")[2] or found
