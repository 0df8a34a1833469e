"""`brisk bench soak`: ten minutes of everything that goes wrong in a real deployment.

Clients ask the sample models over HTTP and gRPC without pause, in all classes, while models are
loaded and unloaded, workers killed, artefacts damaged, and the cache directory's disk, a small
one, is filled. No answer may be wrong, no request lost, nothing may leak.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tritonclient.http import InferenceServerClient

from brisk_client.benchmarks.harness.command_line import bars, benchmark_parser, run_command
from brisk_client.benchmarks.harness.machine import new_report
from brisk_client.benchmarks.harness.served_entries import SAMPLES
from brisk_client.benchmarks.harness.served_server import BenchmarkServer, benchmark_server
from brisk_client.benchmarks.pressure.clients import pressure_clients
from brisk_client.benchmarks.pressure.sampling import report_memory, sampled_memory
from brisk_client.demo import difference
from brisk_client.inference import InferenceClient, Transport
from brisk_client.report import Check, Report, check_limit
from brisk_client.samples.expectations import EXPECTED, read_expectations

CLIENTS = 8
WARM_UP_S = 30.0
GROWTH_LIMIT = 0.05
"""Of the last quarter's mean over the first quarter's: workers that replaced others have heaps
of their own age, so it is coarser than in `brisk bench pressure`."""

ANY_CLASS = '\nparameters { key: "brisk_max_class" value { string_value: "realtime" } }\n'
"""Of each entry's configuration: its requests are of all classes."""

CHURNED = "churned"
"""The entry that is loaded and unloaded; a copy of MODEL_OF_CHURNED."""

MODEL_OF_CHURNED = "mlp"
PAUSE_S = 3.0
"""Between two troubles. A request may be running when one worker dies, not when two do."""

DISK_BYTES = 512 * 2**20
"""The samples' prepared forms and as much again."""

FILES_LIMIT = 20
"""How many more files all processes together may have open in the end than in the beginning."""


def run(quick: bool = False, seconds: float = 600.0) -> Report:
    """For ``seconds`` (60 where ``quick``) after the warm-up."""
    seconds = 60.0 if quick else seconds
    packages = ("torch", "tritonclient", "numpy")
    report = new_report("soak", packages, clients=CLIENTS, seconds=seconds)
    present = {path.name for path in Path("/dev/shm").iterdir()}
    with tempfile.TemporaryDirectory(prefix="brisk-soak-") as folder:
        repository = _repository(Path(folder) / "models")
        with small_disk(Path(folder) / "cache") as cache:
            _soak(report, repository, cache, seconds)
    left = {path.name for path in Path("/dev/shm").iterdir()} - present
    left = {name for name in left if "brisk" in name}
    report.checks.append(Check("files left in /dev/shm", len(left), "0", not left))
    return report


def main(arguments: Sequence[str]) -> int:
    parser = benchmark_parser("soak", __doc__, "one minute")
    parser.add_argument("--seconds", type=float, default=600.0)
    return run_command(parser, arguments, run, bars("last_mib", "kind", "what"))


def _soak(report: Report, repository: Path, cache: Path, seconds: float) -> None:
    environment = {"BRISK_CACHE_DIR": str(cache)}
    names = [entry.name for entry in repository.iterdir() if entry.name != CHURNED]
    options = ["--model-control-mode=explicit", *(f"--load-model={name}" for name in names)]
    with (
        benchmark_server(repository, environment, options) as server,
        pressure_clients(server, CLIENTS, WARM_UP_S, seconds) as outcome_of,
        sampled_memory(server, WARM_UP_S, seconds) as memory,
    ):
        troubles = Troubles(server, cache)
        time.sleep(WARM_UP_S)
        troubles.make(seconds)
        outcome = outcome_of()
    report.rows += [
        {"kind": "answers", "what": "sample models", "count": outcome.answers},
        *(
            {"kind": "trouble", "what": what, "count": count}
            for what, count in troubles.counts.items()
        ),
    ]
    outcome.judge(report, "errors, lost requests among them")
    name = "wrong answers and errors around troubles"
    report.checks.append(Check(name, len(troubles.faults), "0", not troubles.faults))
    report.notes += troubles.faults[:10] + troubles.notes
    report_memory(report, memory, int(seconds / 4), GROWTH_LIMIT)
    opened = troubles.files_after - troubles.files_before
    report.checks.append(check_limit("more open files in the end", opened, "<=", FILES_LIMIT))


def _repository(directory: Path) -> Path:
    """The sample entries, and a copy of one that comes and goes; all for requests of any class."""
    directory.mkdir(parents=True)
    for entry in sorted(file.parent for file in SAMPLES.glob(f"*/{EXPECTED}")):
        shutil.copytree(entry, directory / entry.name)
    shutil.copytree(SAMPLES / MODEL_OF_CHURNED, directory / CHURNED)
    for config in directory.glob("*/config.pbtxt"):
        config.write_text(config.read_text() + ANY_CLASS)
    return directory


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
    """Makes trouble. ``faults``: wrong answers and errors of the requests around each trouble."""

    def __init__(self, server: BenchmarkServer, cache: Path) -> None:
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self.notes: list[str] = []
        self.files_before = 0
        self.files_after = 0
        self._server = server
        self._cache = cache
        self._random = random.Random(0)

    def make(self, seconds: float) -> None:
        """One after the other, in turns; returns some seconds before ``seconds`` are over."""
        end_s = time.monotonic() + seconds - 2 * PAUSE_S
        troubles = (self._churn, self._kill, self._damage, self._fill)
        number = 0
        while time.monotonic() < end_s:
            time.sleep(PAUSE_S)
            self._try(troubles[number % len(troubles)])
            self._try(self._ask_in_every_class)
            number += 1
            if number == len(troubles):  # by now every stub is connected to both workers
                self.files_before = self._open_files()
        self._try(self._free)
        time.sleep(PAUSE_S)
        self.files_after = self._open_files()

    def _try(self, trouble: Callable[[], None]) -> None:
        try:
            trouble()
        except Exception as error:  # noqa: BLE001  # every failure is a finding
            self.faults.append(f"{trouble.__name__}: {type(error).__name__}: {error}"[:300])

    def _churn(self) -> None:
        """Load a model, ask it, damage nothing, unload it."""
        with contextlib.closing(InferenceServerClient(self._server.http)) as triton:
            triton.load_model(CHURNED)
            self._ask(CHURNED, MODEL_OF_CHURNED, "normal")
            triton.unload_model(CHURNED)
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
        (*_, expectation) = read_expectations(SAMPLES / expected_of)
        with InferenceClient(self._server.http, Transport.HTTP) as client:
            version = None if model == CHURNED else expectation.version
            parameters = {"brisk_class": job_class}
            outputs = client.infer(
                model, expectation.inputs, version=version, parameters=parameters
            )
        self.counts["request around a trouble"] += 1
        if problem := difference(outputs, expectation.outputs):
            self.faults.append(f"wrong: {model}, {job_class}: {problem}")

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
