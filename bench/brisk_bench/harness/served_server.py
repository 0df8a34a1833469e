"""A real server for a benchmark: a runtime of its own, and what its processes use."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from geventhttpclient.response import HTTPParseError
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from brisk.errors import BriskError
from brisk.protocol.runtime_paths import RuntimePaths
from brisk.triton.backend_directory import DEFAULT_NAMES, assemble
from brisk.triton.instance_threads import with_few_threads
from brisk.triton.launch import ServerFailedError, TritonServer
from brisk.triton.locate import locate_server
from brisk_bench.harness.processes import (
    KINDS,
    ServerProcess,
    end_processes,
    processor_s_of,
    server_processes,
)
from brisk_bench.harness.served_entries import place_model

FAILURES = (BriskError, InferenceServerException, HTTPParseError, OSError)
"""Exceptions raised if a server does not start, does not answer, or answers with an error."""

START_TIMEOUT_S = 300.0
UNLOAD_TIMEOUT_S = 120.0
_EXEC_POLL_S = 0.0005

WITHOUT_COMPLETION = "--disable-auto-complete-config"
"""The server's option for entries whose configuration is complete."""


class BenchmarkServer:
    """A server, the runtime directory that all its processes share, and its endpoints.

    ``begin_s``: when its process became the server, by ``time.perf_counter``.
    """

    def __init__(self, triton: TritonServer, runtime: Path, begin_s: float) -> None:
        assert triton.endpoints.http is not None
        assert triton.endpoints.grpc is not None
        self.http: str = triton.endpoints.http
        self.grpc: str = triton.endpoints.grpc
        self.triton = triton
        self.begin_s = begin_s
        self._runtime = runtime

    @property
    def place(self) -> RuntimePaths:
        """The paths of the CPU's runtime."""
        return RuntimePaths(self._runtime, "cpu")

    def give_up(self) -> None:
        """Raise ServerFailedError if it has ended, or is not ready after START_TIMEOUT_S."""
        if self.triton.returncode is not None:
            failed = f"ended with status {self.triton.returncode}"
        elif time.perf_counter() - self.begin_s > START_TIMEOUT_S:
            failed = f"was not ready within {START_TIMEOUT_S:g} s"
        else:
            return
        raise ServerFailedError(f"tritonserver {failed}: {reason_in(self.triton.log_text())}")

    def processes(self) -> list[ServerProcess]:
        """Return tritonserver, its stubs, Brisk's runtime with its workers; those alive now."""
        return server_processes(self._runtime)

    def processor_s(self) -> float:
        """Return user and system time that all the processes have used so far."""
        return sum(self.processor_s_by_kind().values())

    def processor_s_by_kind(self) -> dict[str, float]:
        """Return user and system time used so far, by KINDS."""
        seconds = dict.fromkeys(KINDS, 0.0)
        for process in self.processes():
            seconds[process.kind] += processor_s_of(process.pid)
        return seconds


@contextlib.contextmanager
def benchmark_server(
    repository: Path,
    environment: Mapping[str, str],
    options: Sequence[str] = (),
    peer: Path | None = None,
) -> Iterator[BenchmarkServer]:
    """Run a server as ``starting_server`` does; entered when it is ready.

    Raises ServerFailedError if it does not get ready. Close clients first.
    """
    with runtime_folder() as runtime:
        started = starting_server(repository, environment, options, peer, runtime)
        with started as server:
            server.triton.wait_ready()
            yield server


@contextlib.contextmanager
def runtime_folder() -> Iterator[Path]:
    """Give a place for a runtime; in the end remove it, and end processes that know it."""
    with tempfile.TemporaryDirectory(prefix="brisk-bench-") as folder:
        runtime = Path(folder) / "runtime"
        try:
            yield runtime
        finally:
            end_processes(runtime)
            shutil.rmtree(runtime, ignore_errors=True)


@contextlib.contextmanager
def starting_server(
    repository: Path,
    environment: Mapping[str, str],
    options: Sequence[str],
    peer: Path | None,
    runtime: Path,
) -> Iterator[BenchmarkServer]:
    """Serve ``repository``; entered when the process has become the server.

    ``environment`` adds to this process's. ``peer``: folder of another backend; without one
      ``onnxruntime`` is Brisk. Log and backends lie next to ``runtime``. Raises ServerFailedError
      if the server ends at once.
    """
    installation = locate_server()
    backends = runtime.with_name("backends")
    assemble(backends, installation, names=DEFAULT_NAMES if peer is None else ("brisk",))
    if peer is not None:
        _place_peer(peer, backends / peer.name)
    server = TritonServer(
        installation,
        repository,
        backends,
        log=runtime.with_name("tritonserver.log"),
        options=with_few_threads(["--exit-timeout-secs=10", *options]),  # as brisk serve, for all
        environment={**os.environ, **environment, "BRISK_RUNTIME_DIR": str(runtime)},
    )
    try:
        server.start()
        yield BenchmarkServer(server, runtime, _wait_for_exec(server, installation.executable))
    finally:
        server.stop()


def _wait_for_exec(server: TritonServer, executable: Path) -> float:
    """Return when the process became the server, by ``time.perf_counter``.

    Before that it is the interpreter that ties it to this process, for some 10 ms.
    """
    target = executable.resolve()
    while True:
        now_s = time.perf_counter()
        with contextlib.suppress(OSError):
            if Path(os.readlink(f"/proc/{server.pid}/exe")) == target:
                return now_s
        if server.returncode is not None:
            raise ServerFailedError(f"the server ended at once: {reason_in(server.log_text())}")
        time.sleep(_EXEC_POLL_S)


def _place_peer(source: Path, target: Path) -> None:
    """Copy a backend, or hard-link its files.

    Triton refuses a backend's library whose real path is elsewhere, so no symbolic link will do.
    """
    if target.is_symlink():
        target.unlink()  # the installation's own of that name
    shutil.copytree(source, target, copy_function=place_model)


def unload_model(client: InferenceServerClient, name: str) -> None:
    """Unload a model and wait until its stub has ended, and the session with it.

    Triton answers before that. Raises ServerFailedError if it takes longer than
    ``UNLOAD_TIMEOUT_S``.
    """
    client.unload_model(name, client_timeout=UNLOAD_TIMEOUT_S)
    until_s = time.monotonic() + UNLOAD_TIMEOUT_S
    while any(
        entry.name == name and entry.state != "UNAVAILABLE"
        for entry in client.get_model_repository_index(client_timeout=UNLOAD_TIMEOUT_S).models
    ):
        if time.monotonic() > until_s:
            raise ServerFailedError(
                f"'{name}' is still being unloaded after {UNLOAD_TIMEOUT_S:.0f} s"
            )
        time.sleep(0.1)


def thread_variables(threads: int) -> dict[str, str]:
    """Return the environment variables for threads of every side's server."""
    return {"BRISK_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}


def reason_in(log: str) -> str:
    """Return why the server gave up: a log line on its model, else its last error or last line."""
    lines = [line for line in log.splitlines() if line.strip() and not line.startswith(("|", "+"))]
    errors = [line for line in lines if line.startswith("E")]
    of_model = [line for line in errors if "failed to load" in line]
    message = (of_model or errors[-1:] or lines[-1:] or ["it said nothing"])[0]
    return message.partition("] ")[2] or message
