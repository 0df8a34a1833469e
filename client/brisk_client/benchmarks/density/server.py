"""One server with its entries: ready after how long, answering how fast, holding how much."""

from __future__ import annotations

import contextlib
import http.client
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from brisk.triton.launch import TritonServer
from brisk.triton.locate import ServerInstallation
from brisk_client.benchmarks.density.memory import ProcessMemory, settled_memory, shared_once
from brisk_client.benchmarks.density.sides import DensityBench, DensitySide
from brisk_client.benchmarks.engines.agreement import agree
from brisk_client.benchmarks.harness.served_server import processes_of
from brisk_client.benchmarks.start.case import Case
from brisk_client.benchmarks.start.server_start import give_up, runtime_folder, wait_for_exec
from brisk_client.benchmarks.start.sides import common_environment
from brisk_client.inference import InferenceClient, Transport

OPTIONS = ("--exit-timeout-secs=10", "--disable-auto-complete-config")

_POLL_S = 0.002
_CALL_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Found:
    """Of one server. ``rounds_s``: of each round the time of each entry's request; ``right``: how
    many of all were."""

    ready_s: float
    rounds_s: Sequence[Sequence[float]]
    right: int
    memory: Sequence[ProcessMemory]

    @property
    def asked(self) -> int:
        return sum(map(len, self.rounds_s))

    def median_ms(self, number: int) -> float:
        """Of one round's requests."""
        return statistics.median(self.rounds_s[number]) * 1e3

    def private_mb(self, *kinds: str) -> float:
        """Of all processes of ``kinds``; of all where there are none."""
        chosen = (each for each in self.memory if not kinds or each.kind in kinds)
        return sum(each.private_bytes for each in chosen) / 1e6

    @property
    def stubs_mb(self) -> list[float]:
        return [each.private_bytes / 1e6 for each in self.memory if each.kind == "stub"]

    @property
    def pss_mb(self) -> float:
        return sum(each.pss_bytes for each in self.memory) / 1e6

    @property
    def shared_mb(self) -> float:
        return shared_once(self.memory) / 1e6


def find(side: DensitySide, bench: DensityBench, rounds: int) -> Found:
    """Start the side's server, ask each entry once a round, end it.

    Raises ServerFailedError and InferenceServerException.
    """
    with runtime_folder() as (folder, runtime):
        environment = {**common_environment(bench.threads), **side.environment()}
        with running(
            bench.installation, side.repository, side.backends, environment, folder, runtime
        ) as (url, ready_s):
            times, right = ask(url, bench.names, bench.case, rounds)
            memory = settled_memory(lambda: processes_of(runtime))
    return Found(ready_s, times, right, memory)


@contextlib.contextmanager
def running(
    installation: ServerInstallation,
    repository: Path,
    backends: Path,
    environment: Mapping[str, str],
    folder: Path,
    runtime: Path,
) -> Iterator[tuple[str, float]]:
    """A ready server's HTTP endpoint, and the seconds from its ``exec`` on until all its entries
    were ready."""
    server = TritonServer(
        installation,
        repository,
        backends,
        log=folder / "tritonserver.log",
        options=OPTIONS,
        environment={**os.environ, **environment, "BRISK_RUNTIME_DIR": str(runtime)},
    )
    try:
        server.start()
        begin_s = wait_for_exec(server, installation.executable)
        assert server.endpoints.http is not None
        while not _is_ready(server.endpoints.http):
            give_up(server, begin_s)
            time.sleep(_POLL_S)
        yield server.endpoints.http, time.perf_counter() - begin_s
    finally:
        server.stop()


def _is_ready(url: str) -> bool:
    """Whether the server says that all its entries are ready, which by default it means by it."""
    connection = http.client.HTTPConnection(url, timeout=_CALL_TIMEOUT_S)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def ask(url: str, names: Sequence[str], case: Case, rounds: int) -> tuple[list[list[float]], int]:
    """Seconds of each entry's request, round by round, and how many answers were right."""
    times: list[list[float]] = []
    right = 0
    outputs = sorted(case.expected)
    expected = [case.expected[name] for name in outputs]
    with InferenceClient(url, Transport.HTTP, _CALL_TIMEOUT_S) as client:
        for _ in range(rounds):
            times.append([])
            for name in names:
                begin_s = time.perf_counter()
                answer = client.infer(name, case.inputs)
                times[-1].append(time.perf_counter() - begin_s)
                is_whole = answer.keys() == case.expected.keys()
                answered = [np.asarray(answer[each]) for each in outputs] if is_whole else []
                right += is_whole and agree(answered, expected, scaled=True)
    return times, right
