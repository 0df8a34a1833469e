"""What a cold start of an engine is: the same three steps for every one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]
"""Inputs of one inference by name."""


class EngineUnavailableError(Exception):
    """The engine cannot start this model; the message says why."""


@dataclass(frozen=True, slots=True)
class Start:
    """A model just started: its first answer is there.

    ``infer`` runs the next inference on the same inputs. ``settle`` returns when the engine has
    finished whatever it does in the background. ``details`` is what only this engine can tell:
    plain values, asked for behind all that is measured. ``first_s``: what the first answer took,
    where the engine's own clock starts later than the caller's.
    """

    outputs: list[np.ndarray]
    infer: Callable[[], Any]
    settle: Callable[[], None] = lambda: None
    details: Callable[[], Mapping[str, Any]] = dict
    first_s: float | None = None


class ColdEngine(ABC):
    """One way to bring a model from its file to a first answer."""

    name: str

    prepares = False
    """Whether ``prepare`` makes anything."""

    @abstractmethod
    def import_libraries(self) -> None:
        """Import all that a server of this engine would have imported before any model comes.

        Runs before the clock starts, in a process that then forks: it must compute nothing.
        """

    def begin(self) -> None:  # noqa: B027  # some do nothing then
        """What a server of this engine does in a new process before any model comes.

        Runs in the sample's process before the clock starts. Engines that read ONNX files start
        Brisk's practice network and run it once, as Brisk's idle worker does.
        """

    def prepare(self, model: Path, folder: Path, inputs: Arrays, threads: int) -> Path | None:
        """Make ahead of time, in ``folder``, what the engine keeps between starts.

        None where it keeps nothing. Not part of any measured time. Raises
        EngineUnavailableError where this model cannot be prepared.
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
