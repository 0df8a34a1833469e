"""A layer that can run."""

from __future__ import annotations

from dataclasses import dataclass

from brisk.graph.program import Layer
from brisk.solutions.base import Kernel, Solution


@dataclass(frozen=True, slots=True)
class LoadedLayer:
    """A kernel with the slots it reads, in argument order, writes, and leaves for dead."""

    layer: Layer
    solution: Solution
    kernel: Kernel
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    dead: tuple[int, ...]
