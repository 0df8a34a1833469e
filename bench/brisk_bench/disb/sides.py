"""The servers that are compared, with their entries."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from brisk_bench.disb.networks import NETWORKS
from brisk_bench.disb.plan import (
    DEADLINE,
    DEFAULT_POLICY,
    PYTHON,
    RT_ONLY,
    TRITON,
    Plan,
    TritonSetting,
)
from brisk_bench.disb.workloads import due_before_the_next, realtime_only
from brisk_bench.engines.process import prepare_apart
from brisk_bench.harness.peer_backends import ONNXRUNTIME
from brisk_bench.harness.served_entries import (
    ONNXRUNTIME_MODEL,
    parameter,
    signature_of,
    write_brisk_entry,
    write_config,
    write_python_model,
)
from brisk_bench.harness.served_server import WITHOUT_COMPLETION, BenchmarkServer, benchmark_server
from brisk_client.workload.description import Workload

PEER_PARAMETERS = {"inter_op_thread_count": "1", "session.intra_op.allow_spinning": "0"}
"""Parameters of entries of Triton's C++ backend, which the Python backend's entries set, too."""

SUFFIXES = {"realtime": "rt", "besteffort": "be"}

Wanted = Sequence[tuple[str, str]]
"""The network and the class of each entry."""


def save_models(folder: Path, models: Mapping[str, onnx.ModelProto]) -> dict[str, Path]:
    """Write the models into the new ``folder``; return their files by name."""
    folder.mkdir(parents=True)
    files = {name: folder / f"{name}.onnx" for name in models}
    for name, model in models.items():
        onnx.save(model, files[name])
    return files


def entry_name(network: str, job_class: str) -> str:
    return f"{network}_{SUFFIXES[job_class]}"


def write_brisk(repository: Path, files: Mapping[str, Path], wanted: Wanted) -> None:
    """Write entries of Brisk's for ``wanted``, whose class is the entry's default."""
    for name, job_class in wanted:
        parameters = {"brisk_class": job_class}
        write_brisk_entry(repository, files[name], entry_name(name, job_class), parameters)


def write_triton(
    repository: Path,
    files: Mapping[str, Path],
    wanted: Wanted,
    setting: TritonSetting,
    cores: int,
) -> None:
    """Write entries of a backend of Triton's own for ``wanted``, by ``setting``.

    Each class has its own entry, as the rate limiter's priorities belong to entries.
    """
    for name, job_class in wanted:
        file = files[name].resolve()
        threads = 1 if job_class in setting.one_threaded else cores
        more = ""
        if setting.backend != PYTHON:
            values = {**PEER_PARAMETERS, "intra_op_thread_count": str(threads)}
            more = "".join(parameter(*each) for each in values.items())
        entry, signature = entry_name(name, job_class), signature_of(file)
        instances = setting.instance_group(job_class)
        folder = write_config(
            repository, entry, signature, setting.backend, more, instances=instances
        )
        if setting.backend == PYTHON:
            write_python_model(
                folder, signature, ONNXRUNTIME_MODEL, file=str(file), threads=threads
            )
        else:
            (folder / "model.onnx").symlink_to(file)


@dataclass(frozen=True, slots=True)
class Side:
    """One competitor with its running server."""

    name: str
    server: BenchmarkServer

    def fit(self, workload: Workload) -> Workload:
        """Return the workload as this side is asked it: an entry for each network and class."""
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
def running_sides(plan: Plan, wanted: Wanted) -> Iterator[list[Side]]:
    """Run a server for each policy among the plan's sides (RT_ONLY shares the default policy's),
    and for each of its settings of Triton's. Servers without requests sleep.

    ``wanted``: networks and classes that they have to serve. Raises ServerFailedError if one does
      not start.
    """
    with tempfile.TemporaryDirectory(prefix="brisk-disb-") as folder, contextlib.ExitStack() as on:
        root = Path(folder)
        models = {name: network.build() for name, network in NETWORKS.items()}
        files = save_models(root / "models", models)
        for network in sorted({network for network, _ in wanted}):
            prepare_apart(files[network], root / "cache", "--threads", plan.threads)
        write_brisk(root / "brisk", files, wanted)
        servers: dict[str, BenchmarkServer] = {}
        sides = []
        for name in plan.sides:
            if name != TRITON:
                policy = DEFAULT_POLICY if name == RT_ONLY else name
                if policy not in servers:
                    server = brisk_server(root / "brisk", policy, plan.threads, root / "cache")
                    servers[policy] = on.enter_context(server)
                sides.append(Side(name, servers[policy]))
        for number, setting in enumerate(plan.settings):
            repository = root / f"triton-{number}"
            write_triton(repository, files, wanted, setting, plan.threads)
            server = triton_server(repository, setting, plan)
            sides.append(Side(setting.side, on.enter_context(server)))
        yield sides


def runtime_variables(policy: str, threads: int) -> dict[str, str]:
    return {"BRISK_POLICY": policy, "BRISK_THREADS": str(threads)}


def brisk_server(
    repository: Path, policy: str, threads: int, cache: Path | None = None
) -> contextlib.AbstractContextManager[BenchmarkServer]:
    """Run a server of Brisk's that uses what is prepared in ``cache``, and prepares nothing itself
    while others are measured."""
    variables = {**runtime_variables(policy, threads), "BRISK_ARTEFACTS": "use"}
    if cache is not None:
        variables["BRISK_CACHE_DIR"] = str(cache)
    return benchmark_server(repository, variables, [WITHOUT_COMPLETION])


def triton_server(
    repository: Path, setting: TritonSetting, plan: Plan
) -> contextlib.AbstractContextManager[BenchmarkServer]:
    options = [WITHOUT_COMPLETION, *setting.options()]
    variables = {"OMP_NUM_THREADS": str(plan.threads)}
    own = plan.peers / ONNXRUNTIME if plan.peers and setting.backend == ONNXRUNTIME else None
    return benchmark_server(repository, variables, options, own)
