"""Real servers for tests: started on free loopback ports, each with a runtime of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from brisk.protocol.stub_process import parent_of
from brisk.triton.launch import TritonServer
from brisk.triton.locate import ServerInstallation
from support.runtime.runtime_processes import processes_started_in

SAMPLES = Path(__file__).resolve().parents[3] / "model_repository"
_RUNTIME_END_TIMEOUT_S = 10.0

StartServer = Callable[..., TritonServer]

_running: list[TritonServer] = []


def ends_of_dead_servers() -> Iterator[tuple[str, str]]:
    """Yield, for each server that should be running and is not, how it has ended and its log's
    end."""
    for server in _running:
        if server.returncode is not None:
            yield f"tritonserver ended with status {server.returncode}", server.log_tail()


@contextlib.contextmanager
def private_runtime() -> Iterator[Path]:
    """Yield a runtime directory, which the runtime makes; its path is short, as a socket's must
    be.

    Whatever process of the runtime still lives when its server is gone is ended here.
    """
    parent = Path(tempfile.mkdtemp(prefix="brisk-test-"))
    directory = parent / "runtime"
    try:
        yield directory
    finally:
        end_processes(directory)
        shutil.rmtree(parent)


def runtime_directory(server: TritonServer) -> Path:
    """Return the ``$BRISK_RUNTIME_DIR`` that a running server was started with."""
    variables = Path(f"/proc/{server.pid}/environ").read_bytes().split(b"\0")
    value = next(variable for variable in variables if variable.startswith(b"BRISK_RUNTIME_DIR="))
    return Path(os.fsdecode(value.partition(b"=")[2]))


def end_processes(runtime_directory: Path) -> None:
    """End what ``processes_started_in`` finds: SIGTERM, and SIGKILL after a time-out."""
    deadline_s = time.monotonic() + _RUNTIME_END_TIMEOUT_S
    signal_number = signal.SIGTERM
    while remaining := processes_started_in(runtime_directory):
        for process in remaining:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal_number)
        if time.monotonic() > deadline_s:
            signal_number = signal.SIGKILL
        time.sleep(0.1)


class Endings:
    """Servers whose tests are over, and that end while what comes next begins.

    Triton looks once a second whether its models have gone: an end is some three seconds of sleep.
    """

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def begin(self, server: contextlib.ExitStack) -> None:
        """End it in a thread of its own, and wait for those before the last."""
        for thread in self._threads[:-1]:
            thread.join()
        self._threads = [*self._threads[-1:], threading.Thread(target=self._end, args=(server,))]
        self._threads[-1].start()

    def _end(self, server: contextlib.ExitStack) -> None:
        try:
            server.close()
        except BaseException as error:  # noqa: BLE001  # raised by whoever waits for it
            self._errors.append(error)

    def await_all(self) -> None:
        """Raises the first error that one of them has ended with."""
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.join()
        errors, self._errors = self._errors, []
        for error in errors:
            raise error


@contextlib.contextmanager
def running_server(
    installation: ServerInstallation,
    repository: Path,
    backends: Path,
    log: Path,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    endings: Endings | None = None,
) -> Iterator[TritonServer]:
    """Yield a ready server with a private runtime. Clients must be closed before it ends.

    It makes no artefacts unless ``environment`` says otherwise: entries stay as tests wrote them.
    ``endings``: it ends among these, not yet behind the block.
    """
    with contextlib.ExitStack() as ended:
        runtime = ended.enter_context(private_runtime())
        own = {
            "BRISK_RUNTIME_DIR": str(runtime),
            "BRISK_ARTEFACTS": "off",
            "BRISK_SAMPLED_SHARE": "0",
        }
        server = ended.enter_context(
            TritonServer(
                installation,
                repository,
                backends,
                log=log,
                options=["--exit-timeout-secs=10", *options],
                environment={**os.environ, **own, **(environment or {})},
            )
        )
        _running.append(server)
        try:
            yield server
        finally:
            _running.remove(server)
            if endings is not None:
                endings.begin(ended.pop_all())


def runtime_processes(server: TritonServer) -> tuple[int, int]:
    """Return the supervisor's process and its worker's."""
    processes = [
        process
        for process in processes_started_in(runtime_directory(server))
        if b"brisk.runtime" in Path(f"/proc/{process}/cmdline").read_bytes()
    ]
    (worker,) = [process for process in processes if parent_of(process) in processes]
    (supervisor,) = set(processes) - {worker}
    return supervisor, worker
