"""A whole small program as data: what another process needs to compute it alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from brisk.compiled.library import library
from brisk.compiled.portable import pack_steps
from brisk.native.run import Outside, SmallRun
from brisk.solutions.values import DTYPE_NAMES

MOST_BYTES = 8 * 1024 * 1024
"""Of weights: whoever computes such a network has a copy of its own."""


@dataclass(frozen=True, slots=True)
class PortableTensor:
    """``dtype`` as ONNX names it; ``sizes`` without the batch. Row-major."""

    name: str
    dtype: str
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PortableNetwork:
    """For ``brisk.compiled.portable``: ``content`` has so many ``steps`` of the library in
    ``library``; the network takes ``floats`` of scratch memory for each of ``images`` images at
    most.
    """

    library: Path
    steps: int
    floats: int
    images: int
    inputs: tuple[PortableTensor, ...]
    outputs: tuple[PortableTensor, ...]
    content: bytes


def make_portable(
    run: SmallRun, inputs: Sequence[str], outputs: Sequence[str], longest_ns: float
) -> PortableNetwork | None:
    """``run``, which is a whole program, with its inputs and outputs named, in their order.

    None where it has not been compiled yet, is too large, or takes longer than ``longest_ns``, as
    predicted, for a single image.
    """
    executor, sketch = library(), run.sketch
    if executor is None or sketch is None:
        return None
    operands = _tensors(inputs, run.operands)
    results = _tensors(outputs, run.results)
    images = min(run.most_images, int((longest_ns - sketch.call_ns) / max(sketch.image_ns, 1.0)))
    constants = [(step.weights, step.bias) for step in sketch.steps]
    size = sum(array.nbytes for pair in constants for array in pair if array is not None)
    if operands is None or results is None or images < 1 or size > MOST_BYTES:
        return None
    entries = [step.entry() for step in sketch.steps]
    content = pack_steps(entries, constants)
    return PortableNetwork(
        executor.path, len(entries), run.floats, images, operands, results, content
    )


def _tensors(
    names: Sequence[str], outsides: Sequence[Outside]
) -> tuple[PortableTensor, ...] | None:
    """None where one of them does not lie row-major."""
    if not all(_is_row_major(outside) for outside in outsides):
        return None
    return tuple(
        PortableTensor(name, DTYPE_NAMES[outside.dtype], outside.sizes)
        for name, outside in zip(names, outsides, strict=True)
    )


def _is_row_major(outside: Outside) -> bool:
    if outside.order is torch.contiguous_format:
        return True
    channels, *positions = outside.sizes
    return channels == 1 or math.prod(positions) == 1
