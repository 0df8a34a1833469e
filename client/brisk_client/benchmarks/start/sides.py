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
    """One row of the report at each of its configurations.

    ``prepared``: what can be made ahead of the start has been made.
    """

    def __init__(self, bench: StartBench, name: str, *, prepared: bool) -> None:
        self.name = name
        self._bench = bench
        self._prepared = prepared

    @property
    def configurations(self) -> Sequence[Configuration]:
        """Of peers that are prepared, only the whole one."""
        return (Configuration.COMPLETE,) if self._prepared else tuple(Configuration)

    @property
    def backends(self) -> Path:
        """The server's backend directory."""
        return self._bench.backends

    def prepare(self) -> None:
        """Once, before any start. Raises EngineUnavailableError."""
        if self._prepared:
            self._bench.optimised()

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


class Brisk(StartSide):
    """Not prepared: nothing is there but the entry, no artefact, an empty cache directory.
    Prepared: both as `brisk prepare` and earlier starts left them."""

    def __init__(self, bench: StartBench, *, prepared: bool) -> None:
        super().__init__(bench, PREPARED if prepared else FIRST, prepared=prepared)

    @property
    def configurations(self) -> Sequence[Configuration]:
        return tuple(Configuration)

    def prepare(self) -> None:
        for configuration in self.configurations if self._prepared else ():
            entry = self._fresh(configuration) / ENTRY
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
        if self._prepared:
            return self._folder(configuration) / "repository"
        return self._fresh(configuration)

    def environment(self, configuration: Configuration) -> Mapping[str, str]:
        return {"BRISK_CACHE_DIR": str(self._folder(configuration) / "cache")}

    def _fresh(self, configuration: Configuration) -> Path:
        folder = self._folder(configuration)
        shutil.rmtree(folder, ignore_errors=True)
        version = self._write_config(folder / "repository", configuration, "brisk")
        place(self._bench.case.file, version / "model.onnx")
        return folder / "repository"


class PythonOnnxRuntime(StartSide):
    """A model of the Python backend that calls ONNX Runtime, as its user writes it.

    Prepared: from an optimised model with external weights, optimisation off; ``packs``: weights
    anew.
    """

    def __init__(self, bench: StartBench, *, prepared: bool = False, packs: bool = True) -> None:
        name = PYTHON_PREPARED[0 if packs else 1] if prepared else PYTHON
        super().__init__(bench, name, prepared=prepared)
        self._no_prepacking = int(not packs)

    @property
    def configurations(self) -> Sequence[Configuration]:
        return [each for each in super().configurations if each is not Configuration.PLATFORM]

    def repository(self, configuration: Configuration) -> Path:
        bench, folder = self._bench, self._folder(configuration)
        source = ONNXRUNTIME_PREPARED_MODEL if self._prepared else ONNXRUNTIME_MODEL
        if configuration is not Configuration.COMPLETE:
            source += COMPLETION
        inputs, outputs = (
            [(tensor.name, tensor.datatype, list(tensor.dims)) for tensor in tensors]
            for tensors in bench.case.signature
        )
        write_python_entry(
            folder,
            ENTRY,
            bench.case.signature,
            source,
            file=str(bench.optimised() if self._prepared else bench.case.file),
            threads=bench.threads,
            no_prepacking=self._no_prepacking,
            signature_inputs=inputs,
            signature_outputs=outputs,
        )
        return folder


class PeerBackend(StartSide):
    """Another backend, from a folder of its own that holds no Brisk.

    Prepared (Triton's own ONNX Runtime backend): from the optimised model, optimisation off.
    """

    def __init__(self, bench: StartBench, source: Path, *, prepared: bool = False) -> None:
        name = f"{source.name} backend{' prepared' if prepared else ''}"
        super().__init__(bench, name, prepared=prepared)
        self._source = source

    @property
    def backends(self) -> Path:
        return self._bench.folder / "peer-backends" / self._source.name

    def prepare(self) -> None:
        super().prepare()
        if not self.backends.is_dir():
            place_peer(self._source, self.backends, self._bench.installation)

    def repository(self, configuration: Configuration) -> Path:
        bench, folder = self._bench, self._folder(configuration)
        more, model = intra_op_threads(bench.threads), bench.case.file
        if self._prepared:
            model = bench.optimised()
            more += "optimization { graph { level: 2 } }\n"  # none, by that backend's counting
        version = self._write_config(folder, configuration, self._source.name, more)
        place(model, version / "model.onnx")
        if self._prepared and (model.parent / WEIGHTS).is_file():
            place(model.parent / WEIGHTS, version / WEIGHTS)
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
        *(Brisk(bench, prepared=prepared) for prepared in (False, True)),
        PythonOnnxRuntime(bench),
        *(PythonOnnxRuntime(bench, prepared=True, packs=packs) for packs in (True, False)),
    ]
    for peer in peers:
        sides.append(PeerBackend(bench, peer))
        if peer.name == ONNXRUNTIME:
            sides.append(PeerBackend(bench, peer, prepared=True))
    known = [side.name for side in sides]
    for name in names:
        if name not in known:
            text = f"there is no side '{name}'; there are: {'; '.join(known)}"
            raise UnusableArgumentError(text)
    return [side for side in sides if not names or side.name in names]
