"""The serial executor: the simple path, and the oracle of segments and every later pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from brisk.execution.frame import Frame
from brisk.execution.loading import LoadedProgram
from brisk.solutions.base import Value


def run_serially(
    loaded: LoadedProgram, inputs: Mapping[str, Value], requested: Sequence[str] | None = None
) -> dict[str, Value]:
    """Run the program layer by layer in the calling thread; the requested outputs by name."""
    with torch.inference_mode():
        return _finish(Frame(loaded, inputs, requested, by_layers=True))


def run_program(
    loaded: LoadedProgram, inputs: Mapping[str, Value], requested: Sequence[str] | None = None
) -> dict[str, Value]:
    """Run the program as a worker does, by its segment where there is one."""
    with torch.inference_mode():
        return _finish(Frame(loaded, inputs, requested))


def _finish(frame: Frame) -> dict[str, Value]:
    while not frame.step():
        pass
    return frame.results()
