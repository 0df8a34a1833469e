"""The sides: who serves the model, in which state its server finds the machine's files.

Entries are as each side's users write them: complete, or left to the server.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from brisk.triton.locate import ServerInstallation
from brisk_client.benchmarks.engines.onnxruntime_prepared import WEIGHTS, prepare_apart
from brisk_client.benchmarks.engines.process import EngineUnavailableError
from brisk_client.benchmarks.harness.command_line import UnusableArgumentError
from brisk_client.benchmarks.harness.peer_backends import ONNXRUNTIME, place_peer
from brisk_client.benchmarks.harness.served_entries import (
    ONNXRUNTIME_MODEL,
    ONNXRUNTIME_PREPARED_MODEL,
    parameter,
    write_config,
    write_python_entry,
)
from brisk_client.benchmarks.start.case import Case

FIRST, PREPARED = "brisk first", "brisk prepared"
PYTHON = "python backend, onnxruntime"
PYTHON_PREPARED = (f"{PYTHON} prepared", f"{PYTHON} prepared without packing")

ENTRY = "model"
"""The name of the only entry of each side's repository."""

COMPLETION = """
    @staticmethod
    def auto_complete_config(config):
        for name, datatype, dims in {signature_inputs!r}:
            config.add_input({{"name": name, "data_type": datatype, "dims": dims}})
        for name, datatype, dims in {signature_outputs!r}:
            config.add_output({{"name": name, "data_type": datatype, "dims": dims}})
        config.set_max_batch_size(0)
        return config
"""
"""What a Python model says of itself, written down: it opens no file for it."""

_PREPARE_TIMEOUT_S = 900.0


class Configuration(str, Enum):
    """How much of an entry its user wrote, and what the server does about the rest.

    ``complete``: all, and the server runs with ``--disable-auto-complete-config``.
    ``completed``: all, and the server completes it nevertheless, as it does by default.
    ``platform``: the backend alone (``platform: "onnxruntime_onnx"`` where the side has it).
    """

    COMPLETE = "complete"
    COMPLETED = "complete, completed again"
    PLATFORM = "platform alone"

    @property
    def options(self) -> tuple[str, ...]:
        """Of the server."""
        return ("--disable-auto-complete-config",) if self is Configuration.COMPLETE else ()


@dataclass(frozen=True, slots=True)
class StartBench:
    """What all sides share. ``folder``: where theirs lie; ``backends``: with Brisk in it."""

    case: Case
    installation: ServerInstallation
    threads: int
    folder: Path
    backends: Path

    def optimised(self) -> Path:
        """The case's model as ONNX Runtime saved it; made by the first call.

        Raises EngineUnavailableError.
        """
        return prepare_apart(self.case.file, self.folder / "optimised", self.threads).resolve()


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
        """Once, before any start. Raises EngineUnavailableError."""

    @abstractmethod
    def repository(self, configuration: Configuration) -> Path:
        """The repository of the next start, in the state that the side's name tells."""

    def environment(self, configuration: Configuration) -> Mapping[str, str]:
        """Of the next start; adds to what all servers have."""
        return {}

    def _folder(self, configuration: Configuration) -> Path:
        return self._bench.folder / f"{self.name} {configuration.name.lower()}".replace(" ", "-")

    def _write_config(
        self, repository: Path, configuration: Configuration, backend: str, more: str = ""
    ) -> Path:
        """Of a backend that reads ``model.onnx``; the folder of its version. ``more``: settings
        that a complete entry has besides."""
        version = write_config(repository, ENTRY, self._bench.case.signature, backend, more)
        if configuration is Configuration.PLATFORM:
            has_platform = backend in ("brisk", ONNXRUNTIME)
            text = 'platform: "onnxruntime_onnx"\n' if has_platform else f'backend: "{backend}"\n'
            (version.parent / "config.pbtxt").write_text(text)
        return version


class BriskFirst(StartSide):
    """Nothing is there but the entry: no artefact, an empty cache directory."""

    name = FIRST

    def repository(self, configuration: Configuration) -> Path:
        folder = self._folder(configuration)
        shutil.rmtree(folder, ignore_errors=True)
        version = self._write_config(folder / "repository", configuration, "brisk")
        place(self._bench.case.file, version / "model.onnx")
        return folder / "repository"

    def environment(self, configuration: Configuration) -> Mapping[str, str]:
        return {"BRISK_CACHE_DIR": str(self._folder(configuration) / "cache")}


class BriskPrepared(BriskFirst):
    """The entry as `brisk prepare` left it; the cache directory as that and earlier starts did."""

    name = PREPARED

    def prepare(self) -> None:
        for configuration in self.configurations:
            entry = super().repository(configuration) / ENTRY
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
                raise EngineUnavailableError(f"brisk prepare failed: {said[-1] if said else ''}")

    def repository(self, configuration: Configuration) -> Path:
        return self._folder(configuration) / "repository"


class PythonOnnxRuntime(StartSide):
    """A model of the Python backend that calls ONNX Runtime, as its user writes it."""

    name = PYTHON
    configurations: Sequence[Configuration] = (Configuration.COMPLETE, Configuration.COMPLETED)

    def repository(self, configuration: Configuration) -> Path:
        return self._write(configuration, ONNXRUNTIME_MODEL, self._bench.case.file)

    def _write(
        self, configuration: Configuration, source: str, file: Path, **values: object
    ) -> Path:
        folder = self._folder(configuration)
        if configuration is not Configuration.COMPLETE:
            source += COMPLETION
        signature = self._bench.case.signature
        inputs, outputs = (
            [(tensor.name, tensor.datatype, list(tensor.dims)) for tensor in tensors]
            for tensors in signature
        )
        write_python_entry(
            folder,
            ENTRY,
            signature,
            source,
            file=str(file),
            threads=self._bench.threads,
            signature_inputs=inputs,
            signature_outputs=outputs,
            **values,
        )
        return folder


class PythonPrepared(PythonOnnxRuntime):
    """The same from an optimised model with external weights, optimisation off."""

    configurations = (Configuration.COMPLETE,)

    def __init__(self, bench: StartBench, *, prepacking: bool) -> None:
        super().__init__(bench)
        self.name = PYTHON_PREPARED[0 if prepacking else 1]
        self._prepacking = prepacking

    def prepare(self) -> None:
        self._bench.optimised()

    def repository(self, configuration: Configuration) -> Path:
        file, no_prepacking = self._bench.optimised(), int(not self._prepacking)
        source = ONNXRUNTIME_PREPARED_MODEL
        return self._write(configuration, source, file, no_prepacking=no_prepacking)


class PeerBackend(StartSide):
    """Another backend, from a folder of its own that holds no Brisk."""

    def __init__(self, bench: StartBench, source: Path) -> None:
        super().__init__(bench)
        self._source = source
        self.name = f"{source.name} backend"

    @property
    def backends(self) -> Path:
        return self._bench.folder / "peer-backends" / self._source.name

    def prepare(self) -> None:
        if not self.backends.is_dir():
            place_peer(self._source, self.backends, self._bench.installation)

    def repository(self, configuration: Configuration) -> Path:
        folder, more = self._folder(configuration), intra_op_threads(self._bench.threads)
        version = self._write_config(folder, configuration, self._source.name, more)
        place(self._bench.case.file, version / "model.onnx")
        return folder


class PeerPrepared(PeerBackend):
    """Triton's own ONNX Runtime backend, from the optimised model, optimisation off."""

    configurations = (Configuration.COMPLETE,)

    def __init__(self, bench: StartBench, source: Path) -> None:
        super().__init__(bench, source)
        self.name = f"{source.name} backend prepared"

    def prepare(self) -> None:
        super().prepare()
        self._bench.optimised()

    def repository(self, configuration: Configuration) -> Path:
        unoptimised = "optimization { graph { level: 2 } }\n"  # none, by that backend's counting
        folder, more = self._folder(configuration), intra_op_threads(self._bench.threads)
        version = self._write_config(folder, configuration, self._source.name, more + unoptimised)
        source = self._bench.optimised()
        place(source, version / "model.onnx")
        if (source.parent / WEIGHTS).is_file():
            place(source.parent / WEIGHTS, version / WEIGHTS)
        return folder


def intra_op_threads(threads: int) -> str:
    """As Triton's own backend reads it in a configuration."""
    return parameter("intra_op_thread_count", threads)


def place(source: Path, target: Path) -> None:
    """A copy; what stood there goes.

    No hard link: making one changes the file's times for all that have it, and with that what an
    artefact knows of its model. No entry of a user is written anew between two starts.
    """
    target.unlink(missing_ok=True)
    shutil.copyfile(source, target)


def chosen_sides(
    bench: StartBench, peers: Sequence[Path], names: Sequence[str]
) -> list[StartSide]:
    """Those of ``names``, all where there are none, in the order of the report.

    Raises UnusableArgumentError for a name that there is not.
    """
    sides: list[StartSide] = [
        BriskFirst(bench),
        BriskPrepared(bench),
        PythonOnnxRuntime(bench),
        PythonPrepared(bench, prepacking=True),
        PythonPrepared(bench, prepacking=False),
    ]
    for peer in peers:
        sides.append(PeerBackend(bench, peer))
        if peer.name == ONNXRUNTIME:
            sides.append(PeerPrepared(bench, peer))
    known = [side.name for side in sides]
    for name in names:
        if name not in known:
            text = f"there is no side '{name}'; there are: {'; '.join(known)}"
            raise UnusableArgumentError(text)
    return [side for side in sides if not names or side.name in names]
