"""Starting a real ``tritonserver``, waiting until it is ready, and stopping it without leaving
processes or shared memory."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from brisk.errors import BriskError, UnavailableError
from brisk.triton.locate import ServerInstallation
from brisk.triton.options import (
    Endpoints,
    endpoints,
    holding_free_ports,
    on_loopback,
    with_default,
)
from brisk.triton.regions import SHARED_MEMORY, own_prefix, with_prefix
from brisk.triton.server_preload import preloading

READY_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 45.0
_POLL_S = 0.05
_PROBE_TIMEOUT_S = 2.0
_GROUP_TIMEOUT_S = 10.0
_GROUP_POLL_S = 0.01
_TAIL_LINES = 20
_LINE_CHARACTERS = 400
_TETHER = Path(__file__).with_name("parent_bound.py")

MALLOC_ARENAS = 2
"""The most arenas of glibc's allocator, which else makes one for nearly every thread and gives
little back: with 64 clients the server's memory then goes on growing after a minute."""


class ServerFailedError(BriskError):
    """The server ended, or did not become ready in time; the message has the end of its log."""


def command_line(installation: ServerInstallation, options: Sequence[str]) -> tuple[str, ...]:
    """Return the server's whole command; ``options`` override the defaults added here."""
    options = on_loopback(options)
    if installation.caches is not None:
        options = with_default(options, "cache-directory", str(installation.caches))
    return (str(installation.executable), *options)


def server_environment(
    installation: ServerInstallation, base: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return environment ``base`` (default: this process's) with what the server and its stubs
    need.

    The wheel's stub runs the first ``python3`` in PATH, so this interpreter's comes first. The
    runtime gets this interpreter, too (``$BRISK_PYTHON``), unless the caller chose one, and the
    server's allocator at most MALLOC_ARENAS arenas.
    """
    environment = dict(os.environ if base is None else base)
    environment.setdefault("BRISK_PYTHON", sys.executable)
    environment.setdefault("MALLOC_ARENA_MAX", str(MALLOC_ARENAS))
    if installation.embedded:
        _prepend(environment, "PATH", [Path(sys.executable).parent])
    _prepend(environment, "LD_LIBRARY_PATH", installation.library_path)
    return environment


def _prepend(environment: dict[str, str], name: str, directories: Sequence[Path]) -> None:
    present = environment.get(name, "").split(os.pathsep)
    if merged := dict.fromkeys([*map(str, directories), *filter(None, present)]):
        environment[name] = os.pathsep.join(merged)


class TritonServer:
    """One running server, with HTTP; use as a context manager.

    Ports that ``options`` do not give are free ones on the loopback address, held until the server
    is stopped; with ``prefer_default_ports`` Triton's own if these are free. The server leads its
    own process group, so that Ctrl-C reaches only this process, which then stops it, and so that
    stubs that outlive a killed server are found. It ends with the thread that starts it, even if
    that is killed. Not for use by several threads.
    """

    def __init__(
        self,
        installation: ServerInstallation,
        repository: Path,
        backends: Path,
        *,
        log: Path,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        prefer_default_ports: bool = False,
    ) -> None:
        self._held_ports = contextlib.ExitStack()
        options = self._held_ports.enter_context(
            holding_free_ports(options, prefer_default=prefer_default_ports)
        )
        self._region_prefix = f"{own_prefix()}{uuid.uuid4().hex[:8]}_"
        options = with_prefix(options, self._region_prefix)
        options = with_default(options, "model-repository", str(repository))
        options = with_default(options, "backend-directory", str(backends))
        self.command = command_line(installation, options)
        self.endpoints: Endpoints = endpoints(self.command)
        self.log = log
        self._environment = preloading(
            server_environment(installation, environment), backends / "brisk"
        )
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start_bytes = 0

    @property
    def pid(self) -> int:
        if self._process is None:
            raise UnavailableError("the server is not running")
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status; None while running."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start the process; does not wait. Its output is appended to ``log``."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            self._log_start_bytes = output.tell()
            tether = [sys.executable, "-I", "-S", str(_TETHER), str(os.getpid())]
            self._process = subprocess.Popen(
                [*tether, *self.command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
            )

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until all models are loaded and requests are answered.

        Raises ServerFailedError with the end of the log if the process ends or the time is over.
        """
        deadline_s = time.monotonic() + timeout_s
        while not self.is_ready():
            if self.returncode is not None:
                how = f"ended with status {self.returncode} before it was ready"
            elif time.monotonic() > deadline_s:
                how = f"was not ready within {timeout_s:g} s"
            else:
                time.sleep(_POLL_S)
                continue
            raise ServerFailedError(
                f"tritonserver {how}; its log ({self.log}) ends:\n{self.log_tail()}"
            )

    def is_ready(self) -> bool:
        """Whether the process runs, its models are loaded and every service listens.

        Triton starts HTTP before metrics, so an answer over HTTP alone is not enough.
        """
        if self._process is None or self.returncode is not None:
            return False
        others = (self.endpoints.grpc, self.endpoints.metrics)
        return _answers_ok(f"http://{self.endpoints.http}/v2/health/ready") and all(
            _accepts(endpoint) for endpoint in others if endpoint is not None
        )

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> int | None:
        """Ask the server to end, and kill it if it does not. Return its exit status.

        The rest of its process group (stubs of a killed server) is then killed, too, and the
        shared-memory regions that such a server leaves are removed. A second call does nothing.
        Close clients first: a kept-alive HTTP connection delays the server's end until its
        ``--exit-timeout-secs`` (30 unless given).
        """
        self._held_ports.close()
        process, self._process = self._process, None
        if process is None:
            return None
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        _end_group(process.pid)
        for region in SHARED_MEMORY.glob(self._region_prefix + "*"):
            region.unlink(missing_ok=True)
        return process.returncode

    def log_text(self) -> str:
        """Return what the server has written to the log since this start."""
        with self.log.open("rb") as file:
            file.seek(self._log_start_bytes)
            return file.read().decode(errors="replace")

    def log_tail(self) -> str:
        """Return the last lines of the log, after earlier lines with errors, without tables."""
        lines = [
            line[:_LINE_CHARACTERS]
            for line in self.log_text().splitlines()
            if line.strip() and not line.startswith(("|", "+-"))
        ]
        earlier, tail = lines[:-_TAIL_LINES], lines[-_TAIL_LINES:]
        errors = [line for line in earlier if line.startswith("E")]
        return "\n".join([*errors[-_TAIL_LINES:], *tail])

    def __enter__(self) -> TritonServer:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def _end_group(group: int) -> None:
    """Kill the rest of a process group and wait until it is gone, up to ``_GROUP_TIMEOUT_S``.

    A killed process lives on until the kernel has removed it, which takes a while if it has much
    memory or the machine is busy. Zombies of other parents (init reaps them) do not count: they
    hold no resources.
    """
    deadline_s = time.monotonic() + _GROUP_TIMEOUT_S
    while _group_lives(group) and time.monotonic() < deadline_s:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)
        time.sleep(_GROUP_POLL_S)


def _group_lives(group: int) -> bool:
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            text = status.read_text(errors="replace")  # names of processes may be any bytes
            state, _, process_group = text.rpartition(")")[2].split()[:3]
            if int(process_group) == group and state not in "ZX":
                return True
    return False


def _answers_ok(url: str) -> bool:
    from http.client import HTTPException  # late: not needed to become a server
    from urllib.request import urlopen

    try:
        with urlopen(url, timeout=_PROBE_TIMEOUT_S) as answer:
            return bool(answer.status == 200)
    except (OSError, HTTPException):  # an HTTP status of refusal is an OSError, too
        return False


def _accepts(endpoint: str) -> bool:
    host, _, port = endpoint.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_PROBE_TIMEOUT_S):
            return True
    except OSError:
        return False
