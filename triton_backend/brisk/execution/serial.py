"""The serial executor: the simple path, and the oracle of every later pipeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from brisk.execution.frame import TorchFrame
from brisk.execution.loading import LoadedProgram
from brisk.solutions.base import Value


def run_serially(
    loaded: LoadedProgram, inputs: Mapping[str, Value], requested: Sequence[str] | None = None
) -> dict[str, Value]:
    """Run the whole program in the calling thread; the requested outputs by name."""
    if not torch.is_inference_mode_enabled():
        with torch.inference_mode():
            return run_serially(loaded, inputs, requested)
    frame = TorchFrame(loaded, inputs, requested)
    while not frame.step():
        pass
    return frame.results()
