"""The sides: who serves the model, in which state its server finds the machine's files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from brisk.triton.backend_directory import assemble
from brisk.triton.locate import ServerInstallation
from brisk_client.benchmarks.engines.onnxruntime_prepared import VARIABLES, WEIGHTS, prepare_apart
from brisk_client.benchmarks.start.case import Case
from brisk_client.benchmarks.start.entries import (
    ENTRY,
    Configuration,
    place,
    write_config,
    write_model,
    write_python,
)

FIRST, PREPARED = "brisk first", "brisk prepared"
PYTHON = "python backend, onnxruntime"
PYTHON_PREPARED = (f"{PYTHON} prepared", f"{PYTHON} prepared without packing")

_PREPARE_TIMEOUT_S = 900.0


class SideUnavailableError(Exception):
    """The side cannot serve this model; the message says why."""


@dataclass(frozen=True, slots=True)
class StartBench:
    """What all sides share. ``folder``: where theirs lie; ``backends``: with Brisk in it."""

    case: Case
    installation: ServerInstallation
    threads: int
    folder: Path
    backends: Path


class StartSide(ABC):
    """One row of the report at each of its configurations."""

    name: str
    configurations: Sequence[Configuration] = tuple(Configuration)

    def __init__(self, bench: StartBench) -> None:
        self._bench = bench

    @property
    def backends(self) -> Path:
        """The server's backend directory."""
        return self._bench.backends

    def prepare(self) -> None:  # noqa: B027  # some keep nothing between starts
        """Once, before any start. Raises SideUnavailableError."""

    @abstractmethod
    def repository(self, configuration: Configuration) -> Path:
        """The repository of the next start, in the state that the side's name tells."""

    def environment(self, configuration: Configuration) -> Mapping[str, str]:
        """Of the next start; adds to what all servers have."""
        return {}

    def _folder(self, configuration: Configuration) -> Path:
        return self._bench.folder / f"{self.name} {configuration.name.lower()}".replace(" ", "-")


class BriskFirst(StartSide):
    """Nothing is there but the entry: no artefact, an empty cache directory."""

    name = FIRST

    def repository(self, configuration: Configuration) -> Path:
        folder = self._folder(configuration)
        shutil.rmtree(folder, ignore_errors=True)
        write_model(folder / "repository", self._bench.case, configuration, "brisk")
        return folder / "repository"

    def environment(self, configuration: Configuration) -> Mapping[str, str]:
        return {"BRISK_CACHE_DIR": str(self._folder(configuration) / "cache")}


class BriskPrepared(BriskFirst):
    """The entry as `brisk prepare` left it; the cache directory as that and earlier starts did."""

    name = PREPARED

    def prepare(self) -> None:
        for configuration in self.configurations:
            super().repository(configuration)
            self._prepare(configuration)

    def _prepare(self, configuration: Configuration) -> None:
        entry = self._folder(configuration) / "repository" / ENTRY
        command = [sys.executable, "-m", "brisk.cli", "prepare", str(entry)]
        ended = subprocess.run(
            [*command, "--threads", str(self._bench.threads)],
            capture_output=True,
            text=True,
            env={**os.environ, **self.environment(configuration)},
            timeout=_PREPARE_TIMEOUT_S,
            check=False,
        )
        if ended.returncode:
            said = (ended.stderr or ended.stdout).strip().splitlines()
            raise SideUnavailableError(f"brisk prepare failed: {said[-1] if said else ''}")

    def repository(self, configuration: Configuration) -> Path:
        return self._folder(configuration) / "repository"


class PythonOnnxRuntime(StartSide):
    """A model of the Python backend that calls ONNX Runtime, as its user writes it."""

    name = PYTHON
    configurations = (Configuration.COMPLETE, Configuration.COMPLETED)

    def repository(self, configuration: Configuration) -> Path:
        folder = self._folder(configuration)
        write_python(
            folder,
            self._bench.case,
            configuration,
            self._bench.case.file,
            {"threads": self._bench.threads},
        )
        return folder


class PythonPrepared(StartSide):
    """The same from an optimised model with external weights, optimisation off."""

    configurations = (Configuration.COMPLETE,)

    def __init__(self, bench: StartBench, *, prepacking: bool) -> None:
        super().__init__(bench)
        self.name = PYTHON_PREPARED[0 if prepacking else 1]
        self._prepacking = prepacking

    def prepare(self) -> None:
        optimised(self._bench)

    def repository(self, configuration: Configuration) -> Path:
        folder = self._folder(configuration)
        values = {"threads": self._bench.threads, "no_prepacking": int(not self._prepacking)}
        write_python(folder, self._bench.case, configuration, optimised(self._bench), values)
        return folder


class PeerBackend(StartSide):
    """Another backend, from a folder of its own that holds no Brisk."""

    def __init__(self, bench: StartBench, source: Path) -> None:
        super().__init__(bench)
        self._backend = source.name
        self._source = source
        self.name = f"{source.name} backend"

    @property
    def backends(self) -> Path:
        return self._bench.folder / "peer-backends" / self._backend

    def prepare(self) -> None:
        if not self.backends.is_dir():
            assemble(self.backends, self._bench.installation, names=())
            target = self.backends / self._backend
            if target.is_symlink():
                target.unlink()  # the installation's own of that name
            shutil.copytree(self._source, target)

    def repository(self, configuration: Configuration) -> Path:
        folder = self._folder(configuration)
        write_model(folder, self._bench.case, configuration, self._backend)
        if configuration is not Configuration.PLATFORM:
            threads = f'{{ string_value: "{self._bench.threads}" }}'
            more = f'parameters {{ key: "intra_op_thread_count" value: {threads} }}\n'
            write_config(folder, self._bench.case, configuration, self._backend, more)
        return folder


class PeerPrepared(PeerBackend):
    """Triton's own ONNX Runtime backend, from the optimised model, optimisation off."""

    configurations = (Configuration.COMPLETE,)

    def __init__(self, bench: StartBench, source: Path) -> None:
        super().__init__(bench, source)
        self.name = f"{source.name} backend prepared"

    def prepare(self) -> None:
        super().prepare()
        optimised(self._bench)

    def repository(self, configuration: Configuration) -> Path:
        threads = f'{{ string_value: "{self._bench.threads}" }}'
        more = (
            f'parameters {{ key: "intra_op_thread_count" value: {threads} }}\n'
            "optimization { graph { level: 2 } }\n"  # none at all, by that backend's counting
        )
        folder = self._folder(configuration)
        version = write_config(folder, self._bench.case, configuration, self._backend, more)
        source = optimised(self._bench)
        place(source, version / "model.onnx")
        if (source.parent / WEIGHTS).is_file():
            place(source.parent / WEIGHTS, version / WEIGHTS)
        return folder


def optimised(bench: StartBench) -> Path:
    """The case's model as ONNX Runtime saved it; made by the first call.

    Raises NotPreparedError.
    """
    return prepare_apart(bench.case.file, bench.folder / "optimised", bench.threads).resolve()


def all_sides(bench: StartBench, peers: Sequence[Path]) -> list[StartSide]:
    """In the order of the report."""
    sides: list[StartSide] = [
        BriskFirst(bench),
        BriskPrepared(bench),
        PythonOnnxRuntime(bench),
        PythonPrepared(bench, prepacking=True),
        PythonPrepared(bench, prepacking=False),
    ]
    for peer in peers:
        sides.append(PeerBackend(bench, peer))
        if peer.name == "onnxruntime":
            sides.append(PeerPrepared(bench, peer))
    return sides


class UnknownSideError(Exception):
    """There is no side of that name; the message says which there are."""


def chosen_sides(sides: Sequence[StartSide], names: Sequence[str]) -> list[StartSide]:
    """Those of ``names``; all where there are none. Raises UnknownSideError."""
    known = [side.name for side in sides]
    for name in names:
        if name not in known:
            raise UnknownSideError(f"there is no side '{name}'; there are: {'; '.join(known)}")
    return [side for side in sides if not names or side.name in names]


def common_environment(threads: int) -> dict[str, str]:
    """What every side's server finds in its environment."""
    return {"BRISK_THREADS": str(threads), "OMP_NUM_THREADS": str(threads), **VARIABLES}
