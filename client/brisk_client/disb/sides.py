"""What is compared: Brisk under each policy, real-time clients alone, and Triton as it is.

Triton without Brisk has settings that its users can choose; the best one is the baseline.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx

from brisk.errors import InvalidConfigurationError
from brisk_client.benchmarks.harness.peer_backends import ONNXRUNTIME, onnxruntime_backend
from brisk_client.benchmarks.harness.served_entries import ONNXRUNTIME_MODEL, write_brisk_entry
from brisk_client.benchmarks.harness.served_server import BenchmarkServer, benchmark_server
from brisk_client.disb.networks import NETWORKS
from brisk_client.disb.workloads import due_before_the_next, realtime_only
from brisk_client.workload.description import Workload

RT_ONLY = "RT-only"
"""The real-time clients alone, on the server of the default policy."""

DEFAULT_POLICY = "padded"

DEADLINE = "deadline"
"""The policy whose real-time requests have one: without, it is ``preemptive``."""

POLICIES = ("sequential", "shared", "preemptive", "padded", DEADLINE)

TRITON = "triton"
"""What the names of all its sides begin with."""

PYTHON = "python"
"""Triton's Python backend, with ONNX Runtime in it."""

RESOURCE = "turn"

PRIORITIES: Mapping[str, int] = {"realtime": 1, "besteffort": 100}
"""Of the rate limiter, which grants executions in inverse proportion."""

PEER_PARAMETERS: Mapping[str, str] = {
    "inter_op_thread_count": "1",
    "session.intra_op.allow_spinning": "0",
}
"""Of entries of Triton's C++ backend: what the Python backend's entries set, too."""

SUFFIXES = {"realtime": "rt", "besteffort": "be"}

WITHOUT_COMPLETION = "--disable-auto-complete-config"

Wanted = Iterable[tuple[str, str]]
"""Entries: network and class of each."""


@dataclass(frozen=True, slots=True)
class TritonSetting:
    """How a server of Triton's own is set up.

    ``instances`` of each entry. ``threads``: of ONNX Runtime within an operator, by class; None:
    one for each core. ``turns``: executions that may run at once by the rate limiter; None: it is
    off. ``limited``: classes whose executions take a turn.
    """

    name: str
    backend: str = PYTHON
    instances: int = 1
    threads: Mapping[str, int | None] = field(default_factory=lambda: dict.fromkeys(PRIORITIES))
    turns: int | None = None
    limited: Sequence[str] = tuple(PRIORITIES)

    @property
    def side(self) -> str:
        return f"{TRITON} {self.name}"

    def options(self) -> list[str]:
        """Of the server's command line."""
        if self.turns is None:
            return ["--rate-limit=off"]
        return ["--rate-limit=execution_count", f"--rate-limit-resource={RESOURCE}:{self.turns}"]

    def instance_group(self, job_class: str) -> str:
        """Of ``config.pbtxt``."""
        limiter = ""
        if self.turns is not None:
            taken = f'resources [ {{ name: "{RESOURCE}" count: 1 global: true }} ] '
            limiter = (
                f" rate_limiter {{ {taken if job_class in self.limited else ''}"
                f"priority: {PRIORITIES[job_class]} }}"
            )
        return f"instance_group [ {{ count: {self.instances} kind: KIND_CPU{limiter} }} ]\n"


_ONE_EACH: Mapping[str, int | None] = dict.fromkeys(PRIORITIES, 1)


def settings_of(backend: str, label: str) -> tuple[TritonSetting, ...]:
    """What can be set there, from most to least restraint of best-effort work.

    ``one run``: a real-time request waits for one run at most, then has all cores. ``besteffort
    confined``: it never waits; best-effort work has one run at a time, of one thread. ``two
    runs``: two at once, each of as many threads as cores. ``thread a run``: two at once, of one
    thread each. ``free``: no limiter.
    """
    return (
        TritonSetting(f"{label}one run", backend, turns=1),
        TritonSetting(
            f"{label}besteffort confined",
            backend,
            threads={"realtime": None, "besteffort": 1},
            turns=1,
            limited=("besteffort",),
        ),
        TritonSetting(f"{label}two runs", backend, instances=2, turns=2),
        TritonSetting(f"{label}thread a run", backend, instances=2, threads=_ONE_EACH, turns=2),
        TritonSetting(f"{label}free", backend, instances=2),
    )


SETTINGS = settings_of(PYTHON, "")
PEER_SETTINGS = settings_of(ONNXRUNTIME, "C++ ")

QUICK_SETTINGS = ("one run", "two runs")


def choose_settings(names: Sequence[str] | None, peers: Path | None) -> tuple[TritonSetting, ...]:
    """Those called so, of Triton's Python backend and, where ``peers`` is given, of the C++ one.

    Raises InvalidConfigurationError as ``onnxruntime_backend``, and for a name that is none.
    """
    known = SETTINGS
    if peers is not None:
        onnxruntime_backend(peers)
        known += PEER_SETTINGS
    if names is None:
        return known
    for name in names:
        if all(setting.name != name for setting in known):
            listed = ", ".join(f"'{setting.name}'" for setting in known)
            raise InvalidConfigurationError(
                f"--triton-setting: there is no '{name}', only {listed}"
                + ("" if peers else "; those of the C++ backend need --peer-backends")
            )
    return tuple(setting for setting in known if setting.name in names)


def best_screened(screened: Mapping[str, Mapping[str, Any]]) -> str:
    """The side with the least p90 of its short run; one without an answer only where all are."""
    return min(screened, key=lambda side: screened[side].get("p90_ms", float("inf")))


def best_baseline(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The row of least p99 among Triton's; None where none has answers.

    One with too few answers for a p99, where its p90 is the least: it may be the best one, and
    what is compared with it says so.
    """
    answered = [row for row in rows if "p90_ms" in row]
    if not answered:
        return None
    quickest = min(answered, key=lambda row: row["p90_ms"])
    told = [row for row in answered if not isinstance(row["p99_ms"], str)]
    if isinstance(quickest["p99_ms"], str) or not told:
        return quickest
    return min(told, key=lambda row: row["p99_ms"])


# Repositories: for Brisk, and as a Triton user has them today.


def save_models(folder: Path, models: Mapping[str, onnx.ModelProto]) -> dict[str, Path]:
    """Their files in the new ``folder``, by name."""
    folder.mkdir(parents=True)
    files = {name: folder / f"{name}.onnx" for name in models}
    for name, model in models.items():
        onnx.save(model, files[name])
    return files


def entry_name(network: str, job_class: str) -> str:
    return f"{network}_{SUFFIXES[job_class]}"


def write_brisk(repository: Path, files: Mapping[str, Path], wanted: Wanted) -> None:
    """Entries of Brisk's for ``wanted``, whose class is the entry's default."""
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
    """Entries of a backend of Triton's own for ``wanted``, as ``setting`` says.

    An entry for each class, as the rate limiter's priorities are an entry's.
    """
    for name, job_class in wanted:
        folder = repository / entry_name(name, job_class) / "1"
        folder.mkdir(parents=True)
        threads = setting.threads[job_class] or cores
        text = f'backend: "{setting.backend}"\nmax_batch_size: 0\n'
        text += setting.instance_group(job_class)
        file = files[name].resolve()
        if setting.backend == PYTHON:
            source = ONNXRUNTIME_MODEL.format(file=str(file), threads=threads)
            (folder / "model.py").write_text(source.lstrip())
        else:
            (folder / "model.onnx").symlink_to(file)
            values = {**PEER_PARAMETERS, "intra_op_thread_count": str(threads)}
            for key, value in values.items():
                text += f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
        graph = onnx.load(file, load_external_data=False).graph
        for direction, tensors in (("input", graph.input), ("output", graph.output)):
            for tensor in tensors:
                dims = [size.dim_value for size in tensor.type.tensor_type.shape.dim]
                described = f'name: "{tensor.name}" data_type: TYPE_FP32 dims: {dims}'
                text += f"{direction} [ {{ {described} }} ]\n"
        (folder.parent / "config.pbtxt").write_text(text)


# Running servers.


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
        models = {name: network.build() for name, network in NETWORKS.items()}
        files = save_models(root / "models", models)
        write_brisk(root / "brisk", files, wanted)
        servers: dict[str, BenchmarkServer] = {}
        for policy in dict.fromkeys(DEFAULT_POLICY if n == RT_ONLY else n for n in names):
            if policy != TRITON:
                server = brisk_server(root / "brisk", policy, threads)
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


def runtime_variables(policy: str, threads: int) -> dict[str, str]:
    return {"BRISK_POLICY": policy, "BRISK_THREADS": str(threads)}


def brisk_server(
    repository: Path, policy: str, threads: int
) -> contextlib.AbstractContextManager[BenchmarkServer]:
    """A server of Brisk's that makes nothing for later starts while others are measured."""
    variables = {**runtime_variables(policy, threads), "BRISK_ARTEFACTS": "use"}
    return benchmark_server(repository, variables, [WITHOUT_COMPLETION])


def triton_server(
    repository: Path, setting: TritonSetting, threads: int, peers: Path | None
) -> contextlib.AbstractContextManager[BenchmarkServer]:
    """The server of a setting. ``peers``: for a setting of the C++ backend."""
    options = [WITHOUT_COMPLETION, *setting.options()]
    variables = {"OMP_NUM_THREADS": str(threads)}
    own = peers / ONNXRUNTIME if peers is not None and setting.backend == ONNXRUNTIME else None
    return benchmark_server(repository, variables, options, own)
