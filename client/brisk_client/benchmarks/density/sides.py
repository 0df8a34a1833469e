"""Who serves the entries: Brisk, the Python backend with ONNX Runtime, Triton's other backends."""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx

from brisk.triton.backend_directory import assemble
from brisk.triton.locate import ServerInstallation
from brisk_client.benchmarks.harness.served_entries import (
    ONNXRUNTIME_MODEL,
    write_config,
    write_python_entry,
)
from brisk_client.benchmarks.start.case import Case

BRISK = "brisk"
PYTHON = "python backend, onnxruntime"


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


class DensitySide(ABC):
    """A server's backends and repository, which stay as starts leave them."""

    name: str

    def __init__(self, bench: DensityBench) -> None:
        self._bench = bench

    @property
    def folder(self) -> Path:
        return self._bench.folder / self.name.replace(" ", "-").replace(",", "")

    @property
    def backends(self) -> Path:
        return self._bench.backends

    @property
    def repository(self) -> Path:
        return self.folder / "repository"

    def environment(self) -> Mapping[str, str]:
        """Adds to what all servers have."""
        return {"BRISK_CACHE_DIR": str(self.folder / "cache")}

    def prepare(self) -> None:
        """Write the entries, once."""
        for number, name in enumerate(self._bench.names):
            copy = self.folder / "models" / f"{number}.onnx"
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self._bench.case.file, copy)  # a link would be one file to the kernel
            self._write(name, copy)

    @abstractmethod
    def _write(self, name: str, file: Path) -> None:
        """The entry ``name`` of the model ``file``, which is its own."""

    def _write_onnx(self, name: str, file: Path, backend: str, more: str = "") -> None:
        graph = onnx.load(file, load_external_data=False).graph
        version = write_config(self.repository, name, graph, backend)
        file.replace(version / "model.onnx")
        with (version.parent / "config.pbtxt").open("a") as config:
            config.write(more)


class Brisk(DensitySide):
    name = BRISK

    def _write(self, name: str, file: Path) -> None:
        self._write_onnx(name, file, "brisk")


class PythonOnnxRuntimeEntries(DensitySide):
    """A model of the Python backend that calls ONNX Runtime, as its user writes it."""

    name = PYTHON

    def _write(self, name: str, file: Path) -> None:
        values = {"threads": self._bench.threads}
        write_python_entry(self.repository, file, name, ONNXRUNTIME_MODEL, values)


class PeerBackendEntries(DensitySide):
    """Another backend, from a folder of its own that holds no Brisk."""

    def __init__(self, bench: DensityBench, source: Path) -> None:
        super().__init__(bench)
        self._source = source
        self.name = f"{source.name} backend"

    @property
    def backends(self) -> Path:
        return self.folder / "backends"

    def prepare(self) -> None:
        super().prepare()
        assemble(self.backends, self._bench.installation, names=())
        target = self.backends / self._source.name
        if target.is_symlink():
            target.unlink()  # the installation's own of that name
        shutil.copytree(self._source, target)

    def _write(self, name: str, file: Path) -> None:
        threads = f'{{ string_value: "{self._bench.threads}" }}'
        more = f'parameters {{ key: "intra_op_thread_count" value: {threads} }}\n'
        self._write_onnx(name, file, self._source.name, more)


def all_sides(bench: DensityBench, peers: Sequence[Path]) -> list[DensitySide]:
    """In the order of the report."""
    return [
        Brisk(bench),
        PythonOnnxRuntimeEntries(bench),
        *(PeerBackendEntries(bench, peer) for peer in peers),
    ]
