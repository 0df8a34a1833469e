"""The sides: the server of each, and the state in which it finds the machine's files.

Entries are as each side's users write them: complete, or left to the server.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from brisk_bench.engines.case import Case
from brisk_bench.engines.process import run_apart
from brisk_bench.engines.registry import PREPARED_MODEL, PREPARED_WEIGHTS, optimised_apart
from brisk_bench.harness.command_line import UnusableArgumentError
from brisk_bench.harness.peer_backends import ONNXRUNTIME
from brisk_bench.harness.served_entries import (
    ONNXRUNTIME_MODEL,
    ONNXRUNTIME_PREPARED_MODEL,
    Signature,
    parameter,
    write_config,
    write_python_entry,
)
from brisk_bench.harness.served_server import (
    WITHOUT_COMPLETION,
    BenchmarkServer,
    starting_server,
    thread_variables,
)

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
"""The method by which a Python model completes its configuration, opening no file."""


class Configuration(str, Enum):
    """The part of an entry that its user wrote, and what the server does about the rest.

    ``COMPLETE``: all, and the server runs with ``--disable-auto-complete-config``.
    ``COMPLETED``: all, and the server completes it nevertheless, as it does by default.
    ``PLATFORM``: the backend alone (``platform: "onnxruntime_onnx"`` if the side has it).
    """

    COMPLETE = "complete"
    COMPLETED = "complete, completed again"
    PLATFORM = "platform alone"

    @property
    def options(self) -> tuple[str, ...]:
        """The server's options for it."""
        return (WITHOUT_COMPLETION,) if self is Configuration.COMPLETE else ()


@dataclass(frozen=True, slots=True)
class StartBench:
    """The common part of all sides. ``folder``: where theirs lie."""

    case: Case
    threads: int
    folder: Path

    def optimised(self) -> Path:
        """Return the case's model as ONNX Runtime saved it; the first call makes it.

        Raises EngineUnavailableError.
        """
        folder = optimised_apart(self.case.file, self.folder / "optimised", self.threads)
        return folder.resolve() / PREPARED_MODEL


@dataclass(frozen=True, slots=True, eq=False)
class StartSide:
    """One row of the report at each of its configurations.

    ``backend``: the entries' backend.
    ``is_prepared``: what can be made ahead of the start has been made.
    ``packs``: prepared models of the Python backend have their weights packed anew.
    ``peer``: the folder of a ``backend`` other than Brisk and Python's.
    """

    bench: StartBench
    name: str
    backend: str = "brisk"
    is_prepared: bool = False
    packs: bool = True
    peer: Path | None = None

    @property
    def configurations(self) -> Sequence[Configuration]:
        """The configurations to measure; of prepared peers only the complete one."""
        if self.is_prepared and self.backend != "brisk":
            return (Configuration.COMPLETE,)
        return tuple(Configuration)[: 2 if self.backend == "python" else None]

    def prepare(self) -> None:
        """Prepare the side, once, before any start. Raises EngineUnavailableError."""
        if self.is_prepared and self.backend != "brisk":
            self.bench.optimised()
        elif self.is_prepared:
            for configuration in Configuration:
                entry = self.write(configuration) / ENTRY
                arguments = ("prepare", entry, "--threads", self.bench.threads)
                run_apart("brisk.cli", *arguments, environment=self.environment(configuration))

    def environment(self, configuration: Configuration) -> dict[str, str]:
        """Return the variables of its servers and runtimes, added to this process's."""
        cache = self.folder(configuration) / "cache"
        return {**thread_variables(self.bench.threads), "BRISK_CACHE_DIR": str(cache)}

    def folder(self, configuration: Configuration) -> Path:
        name = f"{self.name} {configuration.name.lower()}".replace(" ", "-")
        return self.bench.folder / name

    def starting(
        self, configuration: Configuration, runtime: Path
    ) -> AbstractContextManager[BenchmarkServer]:
        """Start a server of the repository as it is; see ``starting_server``."""
        return starting_server(
            self.folder(configuration) / "repository",
            self.environment(configuration),
            configuration.options,
            self.peer,
            runtime,
        )

    def write(
        self, configuration: Configuration, entries: Mapping[str, Case] | None = None
    ) -> Path:
        """Write and return the repository, with these entries, a model each; None: the only one.

        Nothing else is in its folder: no artefact, an empty cache directory. No hard links: making
        one changes the file's times for all that have it, and with that what an artefact knows of
        its model; and a link would be one file to the kernel.
        """
        folder = self.folder(configuration)
        shutil.rmtree(folder, ignore_errors=True)
        for name, case in (entries or {ENTRY: self.bench.case}).items():
            model = case.file
            if self.is_prepared and self.backend != "brisk":
                assert case is self.bench.case, "only that one is prepared"
                model = self.bench.optimised()
            write = self._write_python if self.backend == "python" else self._write_config
            version = write(folder / "repository", name, case.signature, configuration)
            shutil.copyfile(model, version / "model.onnx")
            if model.with_name(PREPARED_WEIGHTS).is_file():
                shutil.copyfile(model.with_name(PREPARED_WEIGHTS), version / PREPARED_WEIGHTS)
        return folder / "repository"

    def _write_config(
        self, repository: Path, name: str, signature: Signature, configuration: Configuration
    ) -> Path:
        more = ""
        if self.peer is not None:
            more = parameter("intra_op_thread_count", self.bench.threads)
            if self.is_prepared:
                more += "optimization { graph { level: 2 } }\n"  # none, by that backend's counting
        version = write_config(repository, name, signature, self.backend, more)
        if configuration is Configuration.PLATFORM:
            is_known = self.backend in ("brisk", ONNXRUNTIME)
            text = 'platform: "onnxruntime_onnx"' if is_known else f'backend: "{self.backend}"'
            (version.parent / "config.pbtxt").write_text(f"{text}\n")
        return version

    def _write_python(
        self, repository: Path, name: str, signature: Signature, configuration: Configuration
    ) -> Path:
        source = ONNXRUNTIME_PREPARED_MODEL if self.is_prepared else ONNXRUNTIME_MODEL
        if configuration is not Configuration.COMPLETE:
            source += COMPLETION
        inputs, outputs = (
            [(tensor.name, tensor.datatype, list(tensor.dims)) for tensor in tensors]
            for tensors in signature
        )
        version = repository.resolve() / name / "1"
        write_python_entry(
            repository,
            name,
            signature,
            source,
            file=str(version / "model.onnx"),
            threads=self.bench.threads,
            no_prepacking=int(not self.packs),
            signature_inputs=inputs,
            signature_outputs=outputs,
        )
        return version


def chosen_sides(
    bench: StartBench, peers: Sequence[Path], names: Sequence[str]
) -> list[StartSide]:
    """Return the sides of ``names``, or all if that is empty, in the order of the report.

    Raises UnusableArgumentError for an unknown name.
    """
    sides = [
        StartSide(bench, FIRST),
        StartSide(bench, PREPARED, is_prepared=True),
        StartSide(bench, PYTHON, "python"),
        StartSide(bench, PYTHON_PREPARED[0], "python", is_prepared=True),
        StartSide(bench, PYTHON_PREPARED[1], "python", is_prepared=True, packs=False),
    ]
    for peer in peers:
        sides.append(StartSide(bench, f"{peer.name} backend", peer.name, peer=peer))
        if peer.name == ONNXRUNTIME:
            name = f"{peer.name} backend prepared"
            sides.append(StartSide(bench, name, peer.name, is_prepared=True, peer=peer))
    choices = [side.name for side in sides]
    for name in names:
        if name not in choices:
            text = f"there is no side '{name}'; there are: {'; '.join(choices)}"
            raise UnusableArgumentError(text)
    return [side for side in sides if not names or side.name in names]
