"""The servers: one with many entries, and Brisk's runtime before and behind one larger model."""

from __future__ import annotations

import contextlib
import http.client
import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.stub.runtime_client.runtime_process import open_connection
from brisk.triton.locate import ServerInstallation
from brisk_client.benchmarks.density.memory import ProcessMemory, settled_memory, shared_once
from brisk_client.benchmarks.engines.agreement import agree_by_name
from brisk_client.benchmarks.harness.peer_backends import place_peer
from brisk_client.benchmarks.harness.served_entries import (
    ONNXRUNTIME_MODEL,
    write_config,
    write_python_entry,
)
from brisk_client.benchmarks.harness.served_server import processes_of
from brisk_client.benchmarks.harness.surroundings import environment
from brisk_client.benchmarks.start.case import Case
from brisk_client.benchmarks.start.server_start import (
    ServerCommand,
    common_environment,
    give_up,
    runtime_folder,
    started_server,
)
from brisk_client.benchmarks.start.sides import PYTHON, intra_op_threads
from brisk_client.disb.wire import wait_until_settled
from brisk_client.inference import InferenceClient, Transport

BRISK = "brisk"

_POLL_S = 0.002
_CALL_TIMEOUT_S = 120.0

_ROUNDS = 3
"""Of one model. Behind the second a session may take over from the one that started sooner."""


@dataclass(frozen=True, slots=True)
class DensityBench:
    """What all sides share. ``folder``: where theirs lie; ``backends``: with Brisk in it."""

    case: Case
    entries: int
    installation: ServerInstallation
    threads: int
    folder: Path
    backends: Path

    @property
    def names(self) -> list[str]:
        return [f"{self.case.name}_{number}" for number in range(self.entries)]


@dataclass(frozen=True, slots=True)
class DensitySide:
    """A server's backends and repository, which stay as starts leave them.

    ``peer``: another backend than Brisk and the Python backend.
    """

    bench: DensityBench
    name: str
    peer: Path | None = None

    @property
    def folder(self) -> Path:
        return self.bench.folder / self.name.replace(" ", "-").replace(",", "")

    @property
    def environment(self) -> dict[str, str]:
        """Adds to what all servers have."""
        return {"BRISK_CACHE_DIR": str(self.folder / "cache")}

    @property
    def command(self) -> ServerCommand:
        bench = self.bench
        return ServerCommand(
            bench.installation,
            self.folder / "repository",
            self.folder / "backends" if self.peer else bench.backends,
            bench.threads,
            self.environment,
            ("--disable-auto-complete-config",),
        )

    def prepare(self) -> None:
        """Write the entries, once. Each has a file: a link would be one file to the kernel."""
        bench, repository, signature = (
            self.bench,
            self.command.repository,
            self.bench.case.signature,
        )
        for name in bench.names:
            if self.name == PYTHON:
                file = self.folder / "models" / f"{name}.onnx"
                file.parent.mkdir(parents=True, exist_ok=True)
                values = {"file": str(file.resolve()), "threads": bench.threads}
                write_python_entry(repository, name, signature, ONNXRUNTIME_MODEL, **values)
            elif self.peer is not None:
                more = intra_op_threads(bench.threads)
                file = (
                    write_config(repository, name, signature, self.peer.name, more) / "model.onnx"
                )
            else:
                file = write_config(repository, name, signature, "brisk") / "model.onnx"
            shutil.copyfile(bench.case.file, file)
        if self.peer is not None:
            place_peer(self.peer, self.command.backends, bench.installation)


def all_sides(bench: DensityBench, peers: Sequence[Path]) -> list[DensitySide]:
    """In the order of the report."""
    others = [DensitySide(bench, f"{peer.name} backend", peer) for peer in peers]
    return [DensitySide(bench, BRISK), DensitySide(bench, PYTHON), *others]


def figures_of(side: DensitySide) -> dict[str, float]:
    """Start the side's server, ask each entry once in each of two rounds, end it: its row.

    Raises ServerFailedError and InferenceServerException.
    """
    with (
        runtime_folder() as (folder, runtime),
        _running(side.command, folder, runtime) as (url, ready_s),
    ):
        times, right = _ask(url, side.bench, 2)
        memory = settled_memory(lambda: processes_of(runtime))

    def private_mb(*kinds: str) -> float:
        return sum(each.private_bytes for each in memory if each.kind in kinds) / 1e6

    shared_mb = shared_once(memory) / 1e6
    all_private_mb = sum(each.private_bytes for each in memory) / 1e6
    stubs_mb = [each.private_bytes / 1e6 for each in memory if each.kind == "stub"] or [0.0]
    return {
        "ready_s": ready_s,
        "memory_mb": all_private_mb + shared_mb,
        "private_mb": all_private_mb,
        "shared_mb": shared_mb,
        "pss_mb": sum(each.pss_bytes for each in memory) / 1e6,
        "tritonserver_mb": private_mb("tritonserver"),
        "stubs_mb": private_mb("stub"),
        "fork_server_mb": private_mb("fork server", "launcher"),
        "runtime_mb": private_mb("runtime"),
        "stub_mb": statistics.median(stubs_mb),
        "largest_stub_mb": max(stubs_mb),
        "first_round_ms": statistics.median(times[0]) * 1e3,
        "second_round_ms": statistics.median(times[1]) * 1e3,
        "right": right,
        "asked": sum(map(len, times)),
    }


@contextlib.contextmanager
def _running(command: ServerCommand, folder: Path, runtime: Path) -> Iterator[tuple[str, float]]:
    """A ready server's HTTP endpoint, and the seconds from its ``exec`` on until all its entries
    were ready."""
    with started_server(command, folder, runtime) as (server, begin_s):
        assert server.endpoints.http is not None
        while not _is_ready(server.endpoints.http):
            give_up(server, begin_s)
            time.sleep(_POLL_S)
        yield server.endpoints.http, time.perf_counter() - begin_s


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


def _ask(url: str, bench: DensityBench, rounds: int) -> tuple[list[list[float]], int]:
    """Seconds of each entry's request, round by round, and how many answers were right."""
    times: list[list[float]] = []
    right = 0
    with InferenceClient(url, Transport.HTTP, _CALL_TIMEOUT_S) as client:
        for _ in range(rounds):
            times.append([])
            for name in bench.names:
                begin_s = time.perf_counter()
                answer = client.infer(name, bench.case.inputs)
                times[-1].append(time.perf_counter() - begin_s)
                right += agree_by_name(answer, bench.case.expected)
    return times, right


def figures_of_runtime(bench: DensityBench) -> tuple[dict[str, float], dict[str, float]]:
    """Of the runtime's processes with both workers and no model, and what serving the model adds
    to them: ``first_own_mb`` when it has become as fast as it will be, ``own_mb`` when its
    prepared form has taken over.

    A runtime is started, then a server beside it. Raises BriskError and InferenceServerException.
    """
    side = DensitySide(bench, BRISK)
    side.prepare()
    with runtime_folder() as (folder, runtime), contextlib.ExitStack() as stack:
        place = RuntimePaths(runtime, "cpu")
        with environment({**common_environment(bench.threads), **side.environment}):
            for role in Role:  # the first one starts the runtime
                stack.callback(open_connection(place, role).close)
        idle = settled_memory(lambda: processes_of(runtime))
        with _running(side.command, folder, runtime) as (url, _):
            times, right = _ask(url, bench, _ROUNDS)
            first = settled_memory(lambda: processes_of(runtime))
            for name in bench.names:
                wait_until_settled(place, name, "normal")
            more, more_right = _ask(url, bench, _ROUNDS)
            served = settled_memory(lambda: processes_of(runtime))
    alone = {
        "private_mb": sum(each.private_bytes for each in idle) / 1e6,
        "pss_mb": sum(each.pss_bytes for each in idle) / 1e6,
        "processes": len(idle),
    }
    return alone, {
        "own_mb": (_own(served) - _own(idle)) / 1e6,
        "first_own_mb": (_own(first) - _own(idle)) / 1e6,
        "right": right + more_right,
        "asked": sum(map(len, (*times, *more))),
    }


def _own(processes: Sequence[ProcessMemory]) -> int:
    return sum(each.own_bytes for each in processes if each.kind == "runtime")
