"""What goes wrong during a soak, one trouble after the other, and what it did to answers."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from brisk_client.benchmarks.harness.served_server import BenchmarkServer
from brisk_client.demo import difference
from brisk_client.inference import InferenceClient, Transport
from brisk_client.samples.expectations import read_expectations

CHURNED = "churned"
"""The entry that is loaded and unloaded; a copy of MODEL_OF_CHURNED."""

MODEL_OF_CHURNED = "mlp"
PAUSE_S = 3.0
"""Between two troubles. A request may be running when one worker dies, not when two do."""

DISK_BYTES = 512 * 2**20
"""The samples' prepared forms and as much again."""
_REPOSITORY = Path(__file__).resolve().parents[4] / "model_repository"


@contextlib.contextmanager
def small_disk(directory: Path) -> Iterator[Path]:
    """A file system of DISK_BYTES at ``directory`` where one may be mounted; else a directory."""
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(directory)]
    mounted = not subprocess.run(command, capture_output=True, check=False).returncode
    try:
        yield directory
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(directory)], check=False)


class Troubles:
    """Makes trouble from a thread of its own; a context manager, results afterwards.

    ``faults``: wrong answers and errors of the requests that are sent around each trouble.
    """

    def __init__(
        self, server: BenchmarkServer, cache: Path, after_s: float, seconds: float
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.notes: list[str] = []
        self.files_before = 0
        self.files_after = 0
        self._server = server
        self._cache = cache
        self._after_s = after_s
        self._seconds = seconds
        self._random = random.Random(0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="soak-troubles", daemon=True)

    def __enter__(self) -> Troubles:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(timeout=120.0)

    def wait(self) -> None:
        """Until the last trouble is over."""
        self._thread.join(timeout=self._seconds + 120.0)

    def _run(self) -> None:
        if self._ended.wait(self._after_s):
            return
        end_s = time.monotonic() + self._seconds - 2 * PAUSE_S
        troubles = (self._churn, self._kill, self._damage, self._fill)
        number = 0
        while time.monotonic() < end_s and not self._ended.wait(PAUSE_S):
            self._try(troubles[number % len(troubles)])
            self._try(self._ask_in_every_class)
            number += 1
            if number == len(troubles):  # by now every stub is connected to both workers
                self.files_before = self._open_files()
        self._try(self._free)
        self._ended.wait(PAUSE_S)
        self.files_after = self._open_files()

    def _try(self, trouble: Callable[[], None]) -> None:
        try:
            trouble()
        except Exception as error:  # noqa: BLE001  # every failure is a finding
            self.faults.append(f"{trouble.__name__}: {type(error).__name__}: {error}"[:300])

    def _churn(self) -> None:
        """Load a model, ask it, damage nothing, unload it."""
        self._control("load", CHURNED)
        self._ask(CHURNED, MODEL_OF_CHURNED, "normal")
        self._control("unload", CHURNED)
        self.counts["model loaded, asked and unloaded"] += 1

    def _kill(self) -> None:
        """A worker, the foreground one or the other; the supervisor is left alone."""
        runtime = {each.pid for each in self._server.processes() if each.kind == "runtime"}
        workers = [pid for pid in sorted(runtime) if _parent(pid) in runtime]
        os.kill(self._random.choice(workers), signal.SIGKILL)
        self.counts["worker killed"] += 1

    def _damage(self) -> None:
        """Change some bytes of a file of the cache, then load the model that comes and goes."""
        files = [
            path
            for path in self._cache.rglob("*")
            if path.is_file()
            and "backends" not in path.parts
            and 64 < path.stat().st_size < self._free_bytes()
        ]
        if files:
            path = self._random.choice(sorted(files))
            data = bytearray(path.read_bytes())
            place = self._random.randrange(len(data) - 16)
            data[place : place + 16] = self._random.randbytes(16)
            damaged = path.with_name(path.name + ".damaged")
            damaged.write_bytes(data)
            damaged.chmod(path.stat().st_mode)
            damaged.replace(path)  # what is in use stays as it is; the next who reads it sees it
            self.counts["artefact damaged"] += 1
        self._churn()

    def _fill(self) -> None:
        """Fill the cache's disk, load a model, make room again."""
        free = self._free_bytes()
        if free > DISK_BYTES:
            self.notes[:] = ["the full disk was left out: no file system may be mounted here"]
            return
        with contextlib.suppress(OSError), (self._cache / "ballast").open("wb") as file:
            while True:
                file.write(b"\0" * 2**20)
        self._churn()
        self._free()
        self.counts["disk filled"] += 1

    def _free(self) -> None:
        (self._cache / "ballast").unlink(missing_ok=True)

    def _free_bytes(self) -> int:
        status = os.statvfs(self._cache)
        return status.f_frsize * status.f_bavail

    def _ask_in_every_class(self) -> None:
        for job_class in ("realtime", "normal", "besteffort"):
            self._ask("digits_cnn", "digits_cnn", job_class)

    def _ask(self, model: str, expected_of: str, job_class: str) -> None:
        (*_, expectation) = read_expectations(_REPOSITORY / expected_of)
        with InferenceClient(self._server.http, Transport.HTTP) as client:
            version = None if model == CHURNED else expectation.version
            parameters = {"brisk_class": job_class}
            outputs = client.infer(
                model, expectation.inputs, version=version, parameters=parameters
            )
        self.counts["request around a trouble"] += 1
        if problem := difference(outputs, expectation.outputs):
            self.faults.append(f"wrong: {model}, {job_class}: {problem}")

    def _control(self, action: str, model: str) -> None:
        url = f"http://{self._server.http}/v2/repository/models/{model}/{action}"
        request = urllib.request.Request(url, data=json.dumps({}).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=60):
            return

    def _open_files(self) -> int:
        found = 0
        for process in self._server.processes():
            with contextlib.suppress(OSError):
                found += len(os.listdir(f"/proc/{process.pid}/fd"))
        return found


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0
