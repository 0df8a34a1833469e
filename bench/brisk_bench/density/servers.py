"""The servers: one with many entries, and Brisk's runtime before and after one larger model."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.stub.runtime_client.runtime_process import open_connection
from brisk_bench.density.memory import ProcessMemory, settled_memory, shared_once
from brisk_bench.engines.agreement import agree_by_name
from brisk_bench.engines.case import Case
from brisk_bench.harness.served_server import BenchmarkServer, runtime_folder
from brisk_bench.harness.surroundings import environment, wait_until_settled
from brisk_bench.start.sides import Configuration, StartSide
from brisk_client.inference import InferenceClient, Transport

_POLL_S = 0.002
_CALL_TIMEOUT_S = 120.0

_ROUNDS = 3
"""Requests to the one model. After the second, another session may take over from the first one,
which started sooner."""


@dataclass(frozen=True, slots=True, eq=False)
class DensitySide:
    """A side whose server has a repository of many ``entries``."""

    served: StartSide
    entries: Mapping[str, Case]

    def prepare(self) -> None:
        """Write the entries, once."""
        self.served.write(Configuration.COMPLETE, self.entries)

    @contextlib.contextmanager
    def running(self, runtime: Path) -> Iterator[BenchmarkServer]:
        """Run the server; entered when it says that all its entries are ready."""
        with self.served.starting(Configuration.COMPLETE, runtime) as server:
            while not server.triton.is_ready():
                server.give_up()
                time.sleep(_POLL_S)
            yield server

    def ask(self, server: BenchmarkServer, rounds: int) -> tuple[list[list[float]], int]:
        """Return seconds of each entry's request, by round, and the number of right answers."""
        times: list[list[float]] = []
        right = 0
        with InferenceClient(server.http, Transport.HTTP, _CALL_TIMEOUT_S) as client:
            for _ in range(rounds):
                times.append([])
                for name, case in self.entries.items():
                    begin_s = time.perf_counter()
                    answer = client.infer(name, case.inputs)
                    times[-1].append(time.perf_counter() - begin_s)
                    right += agree_by_name(answer, case.expected)
        return times, right


def figures_of(side: DensitySide) -> dict[str, float]:
    """Start the side's server, ask each entry once in each of two rounds, end it; return its row.

    Raises one of FAILURES.
    """
    with runtime_folder() as runtime, side.running(runtime) as server:
        ready_s = time.perf_counter() - server.begin_s
        times, right = side.ask(server, 2)
        memory = settled_memory(runtime)

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


def figures_of_runtime(side: DensitySide) -> tuple[dict[str, float], dict[str, float]]:
    """Measure the runtime's processes with both workers and no model, and what one model adds.

    ``first_own_mb``: when the model has become as fast as it will be. ``own_mb``: when its
    prepared form has taken over. A runtime is started, then a server that uses it. Raises one of
    FAILURES.
    """
    side.prepare()
    with runtime_folder() as runtime, contextlib.ExitStack() as stack:
        place = RuntimePaths(runtime, "cpu")
        with environment(side.served.environment(Configuration.COMPLETE)):
            for role in Role:  # the first one starts the runtime
                stack.callback(open_connection(place, role).close)
        idle = settled_memory(runtime)
        with side.running(runtime) as server:
            times, right = side.ask(server, _ROUNDS)
            first = settled_memory(runtime)
            for name in side.entries:
                wait_until_settled(place, name, "normal")
            more, more_right = side.ask(server, _ROUNDS)
            served = settled_memory(runtime)
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
