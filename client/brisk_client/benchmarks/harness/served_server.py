"""A real server for a benchmark: a runtime of its own, and what its processes use."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from brisk.protocol.runtime_paths import RuntimePaths
from brisk.triton.backend_directory import assemble
from brisk.triton.launch import TritonServer
from brisk.triton.locate import locate_server

_END_TIMEOUT_S = 20.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

_MARKS = (
    (b"brisk: waits for stub", "launcher"),
    (b"brisk: forks stubs", "fork server"),
    (b"triton_python_backend_stub", "stub"),
    (b"brisk.runtime", "runtime"),
)

KINDS = ("tritonserver", "stub", "runtime")
"""A stub's are the launcher that Triton takes for it, and the process that forks them."""


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """One process of the server side; ``kind`` is one of KINDS."""

    pid: int
    kind: str


class BenchmarkServer:
    """A ready server, the runtime directory that all its processes share, and its endpoints."""

    def __init__(self, server: TritonServer, runtime: Path) -> None:
        assert server.endpoints.http is not None
        assert server.endpoints.grpc is not None
        self.http: str = server.endpoints.http
        self.grpc: str = server.endpoints.grpc
        self._runtime = runtime

    @property
    def place(self) -> RuntimePaths:
        """Of the CPU's runtime."""
        return RuntimePaths(self._runtime, "cpu")

    def processes(self) -> list[ServerProcess]:
        """tritonserver, its stubs, Brisk's runtime with its workers; those that live now."""
        return [ServerProcess(pid, _kind(pid)) for pid in processes_of(self._runtime)]

    def has_stub_of(self, name: str) -> bool:
        """Whether a stub of the entry ``name`` lives."""
        wanted = os.fsencode(f"/{name}/")
        return any(
            wanted in _command(process.pid)
            for process in self.processes()
            if process.kind == "stub"
        )

    def processor_s(self) -> float:
        """User and system time that all the processes have used so far."""
        return sum(_processor_ticks(process.pid) for process in self.processes()) / _TICKS_PER_S


@contextlib.contextmanager
def benchmark_server(
    repository: Path,
    environment: Mapping[str, str],
    options: Sequence[str] = (),
    onnxruntime_backend: Path | None = None,
) -> Iterator[BenchmarkServer]:
    """Serve ``repository``; at the end nothing is left of the server, its runtime, its files.

    ``onnxruntime_backend``: folder of Triton's own backend of that name, which else is Brisk.
    Close clients first. Raises ServerFailedError where the server does not become ready.
    """
    installation = locate_server()
    with tempfile.TemporaryDirectory(prefix="brisk-bench-") as folder:
        runtime = Path(folder) / "runtime"
        backends = Path(folder) / "backends"
        if onnxruntime_backend is None:
            assemble(backends, installation)
        else:
            assemble(backends, installation, names=("brisk",))
            _link_backend(onnxruntime_backend, backends / "onnxruntime")
        server = TritonServer(
            installation,
            repository,
            backends,
            log=Path(folder) / "tritonserver.log",
            options=["--exit-timeout-secs=10", *options],
            environment={**os.environ, **environment, "BRISK_RUNTIME_DIR": str(runtime)},
        )
        try:
            with server:
                yield BenchmarkServer(server, runtime)
        finally:
            end_processes(runtime)
            shutil.rmtree(runtime, ignore_errors=True)


def _link_backend(source: Path, target: Path) -> None:
    """A folder of links to the files of ``source``, in the place of what stands there."""
    if target.is_symlink():
        target.unlink()  # the server's own, of a complete installation
    target.mkdir()
    for file in source.iterdir():
        (target / file.name).symlink_to(file.resolve())


def processes_of(runtime: Path) -> list[int]:
    """Processes that were started with ``$BRISK_RUNTIME_DIR`` set to ``runtime``."""
    marker = f"BRISK_RUNTIME_DIR={runtime}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended meanwhile, or is not ours
                if marker in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def kind_of(command: bytes) -> str:
    """By the command line; a runtime's workers and helpers keep their supervisor's."""
    return next((kind for mark, kind in _MARKS if mark in command), "tritonserver")


def _kind(pid: int) -> str:
    kind = kind_of(_command(pid))
    return "stub" if kind in ("launcher", "fork server") else kind


def _command(pid: int) -> bytes:
    """Empty for a process that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _processor_ticks(pid: int) -> int:
    """Fields 14 and 15 of ``/proc/<pid>/stat``; 0 for a process that has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def end_processes(runtime: Path) -> None:
    """A runtime ends by itself soon after its last client; one that does not is ended here."""
    deadline_s = time.monotonic() + _END_TIMEOUT_S
    while remaining := processes_of(runtime):
        for pid in remaining:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if time.monotonic() < deadline_s else signal.SIGKILL)
        time.sleep(0.1)
