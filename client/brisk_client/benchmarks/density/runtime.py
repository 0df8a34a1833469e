"""What Brisk's runtime holds without a model, and what one served model adds to it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from brisk.protocol.host.runtime_paths import RuntimePaths
from brisk.protocol.role import Role
from brisk.stub.runtime_client.runtime_start import open_connection
from brisk_client.benchmarks.density.memory import ProcessMemory, settled_memory
from brisk_client.benchmarks.density.server import ask, running
from brisk_client.benchmarks.density.sides import Brisk, DensityBench
from brisk_client.benchmarks.engines.onnxruntime_prepared import EndedApartError, run_apart
from brisk_client.benchmarks.harness.served_server import processes_of
from brisk_client.benchmarks.start.server_start import runtime_folder
from brisk_client.benchmarks.start.sides import common_environment
from brisk_client.disb.wire import wait_until_settled

_ROUNDS = 3
"""Behind the second one a session may take over from the one that started sooner."""


@dataclass(frozen=True, slots=True)
class Added:
    """``idle``: the runtime's processes with both workers and no model. Memory that serving the
    model has added to them: ``first_bytes`` when it has become as fast as it will be,
    ``model_bytes`` when its prepared form has taken over. ``right`` of ``asked`` answers were."""

    idle: Sequence[ProcessMemory]
    first_bytes: int
    model_bytes: int
    right: int
    asked: int


def measure_runtime(bench: DensityBench) -> Added:
    """Start a runtime, then a server with one entry beside it.

    Raises BriskError and InferenceServerException.
    """
    side = Brisk(bench)
    side.prepare()
    environment = {**common_environment(bench.threads), **side.environment()}
    with runtime_folder() as (folder, runtime):
        connections = [_connect(runtime, role, environment) for role in Role]
        try:
            idle = settled_memory(lambda: processes_of(runtime))
            with running(
                bench.installation, side.repository, side.backends, environment, folder, runtime
            ) as (url, _):
                times, right = ask(url, bench.names, bench.case, _ROUNDS)
                first = settled_memory(lambda: processes_of(runtime))
                for name in bench.names:
                    wait_until_settled(RuntimePaths(runtime, "cpu"), name, "normal")
                more, more_right = ask(url, bench.names, bench.case, _ROUNDS)
                served = settled_memory(lambda: processes_of(runtime))
        finally:
            for connection in connections:
                connection.close()
    asked = sum(map(len, (*times, *more)))
    return Added(
        idle, _own(first) - _own(idle), _own(served) - _own(idle), right + more_right, asked
    )


def _own(processes: Sequence[ProcessMemory]) -> int:
    return sum(each.own_bytes for each in processes if each.kind == "runtime")


def session_bytes(file: Path, threads: int) -> int:
    """Private bytes of a session of ONNX Runtime with its defaults, in a process of its own.

    Raises OSError with what it said where it failed.
    """
    try:
        told = run_apart("brisk_client.benchmarks.density.in_process", file, threads)
    except EndedApartError as error:
        raise OSError(f"onnxruntime: {error}") from error
    return int(told.split()[-1])


def _connect(runtime: Path, role: Role, environment: Mapping[str, str]) -> socket.socket:
    """A greeted connection to a worker; the runtime is started with ``environment`` if need be."""
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        return open_connection(RuntimePaths(runtime, "cpu"), role)
    finally:
        os.environ.clear()
        os.environ.update(before)
