"""What is compared: Brisk under each policy, real-time clients alone, and Triton as it is."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from brisk_client.benchmarks.harness.peer_backends import ONNXRUNTIME
from brisk_client.benchmarks.harness.served_server import BenchmarkServer, benchmark_server
from brisk_client.disb.setup.baselines import TRITON, TritonSetting
from brisk_client.disb.setup.repositories import (
    entry_name,
    write_brisk,
    write_models,
    write_triton,
)
from brisk_client.disb.setup.workloads import due_before_the_next, realtime_only
from brisk_client.workload.spec.description import Workload

POLICY_VARIABLE = "BRISK_POLICY"

WITHOUT_BUILDERS = {"BRISK_ARTEFACTS": "use"}
"""Nothing is made for later starts while others are measured."""

RT_ONLY = "RT-only"
"""The real-time clients alone, on the server of the default policy."""

DEFAULT_POLICY = "padded"

DEADLINE = "deadline"
"""The policy whose real-time requests have one: without, it is ``preemptive``."""

POLICIES = ("sequential", "shared", "preemptive", "padded", DEADLINE)


@dataclass(frozen=True, slots=True)
class Side:
    """One competitor with its running server."""

    name: str
    server: BenchmarkServer

    def fit(self, workload: Workload) -> Workload:
        """The workload as this side is asked it: an entry for each network and class."""
        if self.name == RT_ONLY:
            workload = realtime_only(workload)
        if self.name == DEADLINE:
            workload = due_before_the_next(workload)
        tasks = tuple(
            replace(t, model=entry_name(t.model, t.job_class or "realtime"))
            for t in workload.tasks
        )
        return replace(workload, tasks=tasks)

    @property
    def is_baseline(self) -> bool:
        return self.name.startswith(TRITON)


@contextlib.contextmanager
def running_sides(
    names: Sequence[str],
    wanted: Sequence[tuple[str, str]],
    threads: int,
    settings: Sequence[TritonSetting] = (),
    peers: Path | None = None,
) -> Iterator[list[Side]]:
    """A server for each policy among ``names`` (RT_ONLY shares the default policy's) and, where
    TRITON is one of them, for each of ``settings``.

    ``wanted``: networks and classes that they have to serve. Servers that nobody asks
    sleep. ``peers``: folder of Triton's C++ backend. Raises ServerFailedError where one does not
    start.
    """
    with tempfile.TemporaryDirectory(prefix="brisk-disb-") as folder, contextlib.ExitStack() as on:
        root = Path(folder)
        files = write_models(root / "models")
        write_brisk(root / "brisk", files, wanted)
        servers: dict[str, BenchmarkServer] = {}
        options = ["--disable-auto-complete-config"]
        for policy in dict.fromkeys(DEFAULT_POLICY if n == RT_ONLY else n for n in names):
            if policy != TRITON:
                variables = {**WITHOUT_BUILDERS, "BRISK_THREADS": str(threads)}
                variables[POLICY_VARIABLE] = policy
                server = benchmark_server(root / "brisk", variables, options)
                servers[policy] = on.enter_context(server)
        sides = [
            Side(n, servers[DEFAULT_POLICY if n == RT_ONLY else n]) for n in names if n != TRITON
        ]
        for number, setting in enumerate(settings if TRITON in names else ()):
            repository = root / f"triton-{number}"
            write_triton(repository, files, wanted, setting, threads)
            baseline = triton_server(repository, setting, threads, peers)
            sides.append(Side(setting.side, on.enter_context(baseline)))
        yield sides


def triton_server(
    repository: Path, setting: TritonSetting, threads: int, peers: Path | None
) -> contextlib.AbstractContextManager[BenchmarkServer]:
    """The server of a setting. ``peers``: for a setting of the C++ backend."""
    options = ["--disable-auto-complete-config", *setting.options()]
    variables = {"OMP_NUM_THREADS": str(threads)}
    own = peers / ONNXRUNTIME if peers is not None and setting.backend == ONNXRUNTIME else None
    return benchmark_server(repository, variables, options, onnxruntime_backend=own)
