"""The artefact of a model version: its optimised program, its cold plan and its weights.

Weights lie in execution order: for each layer what its cold solution loads from, transformed
where the plan says so, then what only warm solutions need. A start maps the file and parses no
ONNX; each layer's blobs are verified when it is loaded, by the lane that loads it, so nothing
damaged is ever computed with.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from brisk.artefacts import store
from brisk.artefacts.container import Container
from brisk.artefacts.fingerprint import machine_fingerprint
from brisk.artefacts.identity import ModelIdentity
from brisk.artefacts.paged import PagedBlob
from brisk.artefacts.programs import blobs_of, read_program
from brisk.compiled.library import library
from brisk.errors import ArtefactError
from brisk.execution.kept import MappedTensors, tensor_blobs
from brisk.execution.kept_runs import read_run
from brisk.execution.runs import DrawnRun
from brisk.graph.program import Program
from brisk.solutions.base import Solution
from brisk.solutions.catalogue import Catalogue

SCHEMA = 5
"""Of the manifest's content; another one is foreign."""


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """Measured when the artefact was made, in ns; 0: not measured.

    ``load`` is verification and mapping, or reading and transforming; ``run`` the cold solution's
    later runs, ``first_run`` its first one, which makes its primitive.
    """

    load: int = 0
    first_run: int = 0
    run: int = 0


UNMEASURED = LayerCosts()


@dataclass(frozen=True, slots=True)
class KeptLayer:
    """``solution`` (the cold one) and ``warm`` are names.

    ``tensors``: records of transformed weights by name; None where the raw ones are used.
    ``blobs``: what the cold solution loads from. ``table``: a table of which it looks rows up, and
    the table's page sums. ``lane``: the lane that loads it by the plan; None: the executor.
    """

    solution: str
    warm: str
    tensors: Mapping[str, Mapping[str, Any]] | None
    blobs: tuple[int, ...]
    table: tuple[int, int] | None
    lane: int | None
    costs: LayerCosts


_MALFORMED = (
    *(OSError, ValueError, LookupError, TypeError),
    *(AttributeError, ArithmeticError, RecursionError),
)
"""What reading a manifest that is JSON of another form may raise."""


class Artefact:
    """An artefact that fits its model and this machine. Thread-safe."""

    def __init__(
        self,
        container: Container,
        program: Program,
        layers: Sequence[KeptLayer],
        runs: Sequence[Mapping[str, Any]],
        lanes: int,
    ) -> None:
        """``runs``: records of runs of small layers, in order. Raises ValueError where one has
        layers that there are not, or that are another's.
        """
        self.container = container
        self.program = program
        self.layers = tuple(layers)
        self.lanes = lanes
        self._runs = tuple(runs)
        free = 0
        for record in self._runs:
            if not free <= record["first"] <= record["last"] < len(self.layers):
                raise ValueError(f"a run from layer {record['first']} to {record['last']}")
            free = record["last"] + 1
        self.run_of: Mapping[int, int] = {
            place: number
            for number, record in enumerate(runs)
            for place in range(record["first"], record["last"] + 1)
        }
        """By layer the number of the run that it is a member of; members of one are in order."""
        self._tensors = MappedTensors(container)
        records = container.content["program"]
        self._raw = {
            name: record[2]
            for name, record in records["weights"].items()
            if isinstance(record[2], int)
        }
        self._absent = frozenset(
            name for name, record in records["weights"].items() if record[2] is None
        )
        self._layer_records = records["layers"]

    @property
    def path(self) -> Path:
        return self.container.path

    def verify(self, index: int) -> None:
        """Check what the cold solution of a layer loads from, but for its table.

        Raises ArtefactError.
        """
        for blob in self.layers[index].blobs:
            self.container.verify(blob)

    def table(self, index: int) -> PagedBlob | None:
        """The table that the layer looks rows up in. Raises ArtefactError where it is damaged."""
        found = self.layers[index].table
        return None if found is None else PagedBlob(self.container, *found)

    @property
    def run_count(self) -> int:
        return len(self._runs)

    def run(self, number: int) -> DrawnRun:
        """A run of small layers, verified. Raises ArtefactError where it is damaged."""
        try:
            return read_run(self._runs[number], self.container, self.program)
        except _MALFORMED as error:
            raise ArtefactError(f"{self.path}: run {number}: {error!r}") from error

    def weights(self, index: int) -> Mapping[str, torch.Tensor] | None:
        """The kept transformed weights of a layer; None where there are none."""
        kept = self.layers[index]
        if kept.tensors is None:
            return None
        return {name: self._tensors.read(entry) for name, entry in kept.tensors.items()}

    def solution(self, name: str, catalogue: Catalogue) -> Solution:
        """The solution of that name. Raises ArtefactError where there is none."""
        solution = catalogue.named(name)
        if solution is None:
            raise ArtefactError(f"{self.path}: there is no solution '{name}'")
        return solution

    def has_raw(self, index: int) -> bool:
        """Whether it holds all of a layer's constants as the model has them."""
        return self._absent.isdisjoint(self.program.layers[index].operands)

    def verify_raw(self, index: int) -> None:
        """Check a layer's constants as the model has them.

        Raises ArtefactError where one is damaged or was left out.
        """
        for name in self.program.layers[index].operands:
            if name in self._absent:
                raise ArtefactError(f"{self.path}: constant '{name}' was left out")
            if name in self._raw:
                self.container.verify(self._raw[name])
        for blob in blobs_of(self._layer_records[index]):
            self.container.verify(blob)


def fingerprint_of(device: torch.device, threads: int) -> dict[str, str]:
    """Of this machine and process: kept weights may be in the compiled library's layout."""
    made = library()
    parts = machine_fingerprint(str(device), threads)
    return {**parts, "compiled": made.name if made is not None else ""}


def find_artefact(
    model: Path,
    device: torch.device,
    threads: int,
    environment: Mapping[str, str] = os.environ,
) -> Path | None:
    """A file that may fit the model here; None where there is none.

    ``environment``: of the process whose cache is looked at.
    """
    return store.find(model, fingerprint_of(device, threads), environment)


def open_artefact(
    path: Path,
    model: Path,
    device: torch.device,
    threads: int,
    environment: Mapping[str, str] = os.environ,
) -> Artefact:
    """Map the artefact at ``path`` and check that it is of this model and for this machine.

    ``environment``: of the process in whose cache directory the key is that sealed it. Raises
    ArtefactError where it cannot be used, whatever is wrong with it.
    """
    try:
        container = Container(path, environment)
        content = container.content
        if content["schema"] != SCHEMA or content["fingerprint"] != fingerprint_of(
            device, threads
        ):
            raise ArtefactError(f"{path}: made on another machine or by another version")
        store.check_identity(path, model, ModelIdentity(content["identity"]))
        _verify_defaults(container, content)
        program = read_program(content["program"], container)
        layers = [_kept_layer(record) for record in content["layers"]]
        if len(layers) != len(program.layers):
            raise ArtefactError(f"{path}: {len(program.layers)} layers, {len(layers)} planned")
        lanes = max(int(content["lanes"]), 1)
        return Artefact(container, program, layers, content["runs"], lanes)
    except ArtefactError:
        raise
    except _MALFORMED as error:
        raise ArtefactError(f"{path}: {type(error).__name__}: {error}") from error


def _verify_defaults(container: Container, content: Mapping[str, Any]) -> None:
    """Constants that are inputs or outputs of the program: no layer's load would check them."""
    program = content["program"]
    for name, *_ in (*program["inputs"], *program["outputs"]):
        record = program["weights"].get(name)
        if record is not None and isinstance(record[2], int):
            container.verify(record[2])


def _kept_layer(record: Mapping[str, Any]) -> KeptLayer:
    tensors = record["tensors"]
    blobs = list(record["blobs"])
    if tensors is not None:
        blobs += [blob for entry in tensors.values() for blob in tensor_blobs(entry)]
    return KeptLayer(
        record["solution"],
        record["warm"],
        tensors,
        tuple(blobs),
        None if record["table"] is None else (int(record["table"][0]), int(record["table"][1])),
        None if record["lane"] is None else int(record["lane"]),
        LayerCosts(*record["costs"]),
    )
