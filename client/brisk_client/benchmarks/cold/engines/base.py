"""What a cold start of an engine is: the same three steps for every one."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from brisk_client.benchmarks.cold.machine.burden import write_unrelated

Arrays = Mapping[str, np.ndarray]
"""Inputs of one inference by name."""


class ColdEngineError(Exception):
    """The engine cannot start this model; the message says why."""


@dataclass(frozen=True, slots=True)
class Start:
    """A model just started: its first answer is there.

    ``infer`` runs the next inference on the same inputs. ``settle`` returns when the engine has
    finished whatever it does in the background.
    """

    outputs: list[np.ndarray]
    infer: Callable[[], Any]
    settle: Callable[[], None] = lambda: None


class ColdEngine(ABC):
    """One way to bring a model from its file to a first answer."""

    name: str

    prepares = False
    """Whether ``prepare`` makes anything."""

    as_it_comes = False
    """Whether its process goes without the allocator's settings and the memory of all others."""

    @abstractmethod
    def import_libraries(self) -> None:
        """Import all that a server of this engine would have imported before any model comes.

        Runs before the clock starts, in a process that then forks: it must compute nothing.
        """

    def begin(self, threads: int) -> None:
        """What the sample's process does before the clock starts: start a model that has nothing
        to do with the measured one, the same way, and run it once.

        As Brisk's idle worker does by itself; no engine's first start of all is measured.
        """
        with tempfile.TemporaryDirectory(prefix="brisk-unrelated-") as folder:
            model, inputs = write_unrelated(Path(folder))
            prepared = self.prepare(model, Path(folder), inputs, threads)
            self.start(model, prepared, inputs, threads)

    def prepare(self, model: Path, folder: Path, inputs: Arrays, threads: int) -> Path | None:
        """Make ahead of time, in ``folder``, what the engine keeps between starts.

        None where it keeps nothing. Not part of any measured time. Raises
        ColdEngineError where this model cannot be prepared.
        """
        return None

    def files(self, model: Path, prepared: Path | None) -> list[Path]:
        """The files whose bytes a start reads."""
        if prepared is None:
            return [model]
        if prepared.is_dir():
            return sorted(file for file in prepared.rglob("*") if file.is_file())
        return [prepared]

    @abstractmethod
    def start(self, model: Path, prepared: Path | None, inputs: Arrays, threads: int) -> Start:
        """Load and answer once: what is measured."""
