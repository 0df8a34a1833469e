"""Layers that the compiled library computes: weights in its layout, and the call.

The library multiplies matrices blocked for registers and caches and finishes each block with bias,
a second operand and activation while it is at hand. Its helper threads stay awake for a moment
after a layer, so that the next one finds them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional

from brisk.compiled.layer import LayerEntry
from brisk.compiled.library import Library, absence, library
from brisk.compiled.table import ACTIVATIONS
from brisk.graph.program import Dimension
from brisk.solutions.base import Problem
from brisk.solutions.onednn_fusion import NO_ACTIVATION, Activation, fuse_activation, fuse_binary

_get_num_threads, _empty = torch.get_num_threads, torch.empty
_PLANES = torch.channels_last


@dataclass(frozen=True, slots=True)
class Fused:
    """What of the epilogue the call does: the first ``steps``, with a sum first where ``adds``."""

    steps: int = 0
    activation: Activation = NO_ACTIVATION
    adds: bool = False


def library_refusal(problem: Problem) -> str | None:
    """Why the library cannot compute float32 here; None where it can."""
    if problem.device.type != "cpu":
        return f"compiled for the CPU, not for {problem.device}"
    for operand in problem.operands:
        if operand is not None and operand.type.dtype != "float32":
            return f"dtype {operand.type.dtype} is not float32"
    return None if library() is not None else absence()


def fuse(problem: Problem, result: tuple[Dimension, ...] | None) -> Fused:
    """The longest epilogue of a call whose result has these dimensions.

    A sum is taken whose operand may have the result's shape; the kernel has to compare.
    """
    fusion = fuse_binary(problem, result)
    if fusion.binary == "add" and problem.epilogue_operands[0].constant is None:
        if problem.epilogue_operands[0].type.dtype == "float32":
            return Fused(fusion.steps, fusion.activation, adds=True)
    elif fusion.binary is None:
        fusion = fuse_activation(problem)
        known = fusion.activation.attribute in ACTIVATIONS
        if known and fusion.activation.algorithm in ("", "none"):
            return Fused(fusion.steps, fusion.activation)
    return Fused()


def panels(matrix: torch.Tensor) -> torch.Tensor:
    """(…, inputs, outputs) as (…, panels, inputs, outputs of the panel), padded with zeros."""
    made = _loaded()
    inputs, outputs = matrix.shape[-2:]
    padding = (0, -outputs % made.panel, 0, -inputs % made.block)
    padded = functional.pad(matrix, padding) if any(padding) else matrix.contiguous()
    split = padded.view(*padded.shape[:-1], -1, made.panel)
    return split.movedim(-2, -3).contiguous()


def whole_vectors(rows: torch.Tensor) -> torch.Tensor:
    """(rows, columns) with columns of zeros up to whole vectors."""
    return functional.pad(rows, (0, -rows.shape[1] % _loaded().block)).contiguous()


def padded_bias(bias: torch.Tensor | None, outputs: int) -> torch.Tensor:
    """Of whole panels; zeros where there is none."""
    if bias is None:
        bias = torch.zeros(outputs)
    return functional.pad(bias, (0, -outputs % _loaded().panel)).contiguous()


class CompiledCall:
    """What calls of the library have in common: they ask for torch's number of threads."""

    __slots__ = ("_threads", "_use_threads", "library")

    def __init__(self) -> None:
        self.library = _loaded()
        self._use_threads = self.library.use_threads
        self._threads = 1

    def threads(self) -> int:
        """For the next call; the library's helpers are made where they are missing."""
        threads = _get_num_threads()
        if threads > self._threads:
            self._use_threads(threads)
            self._threads = threads
        return threads


class CompiledLayer(CompiledCall):
    """A layer with its weights: ``panels`` (see ``source/layer.h``) and ``bias``.

    Calls take tensors of the sizes that the caller has checked; none may be empty.
    """

    __slots__ = ("_address", "_entry", "_run", "_weights", "outputs")

    def __init__(
        self,
        weights: Mapping[str, torch.Tensor],
        channels: int,
        outputs: int,
        fused: Fused,
        *,
        unit: int = 0,
        kernel: tuple[int, ...] = (1, 1),
        strides: tuple[int, ...] = (1, 1),
        dilations: tuple[int, ...] = (1, 1),
        before: tuple[int, ...] = (0, 0),
    ) -> None:
        super().__init__()
        activation = fused.activation
        alpha, beta = (*activation.scalars, 0.0, 0.0)[:2]
        entry = LayerEntry(unit, ACTIVATIONS[activation.attribute], channels, outputs, alpha, beta)
        entry.kernel[:], entry.stride[:] = kernel, strides
        entry.dilation[:], entry.before[:] = dilations, before
        self._weights = (weights["panels"], weights["bias"])  # the entry points into them
        entry.weights, entry.bias = (tensor.data_ptr() for tensor in self._weights)
        self._entry, self._address = entry, ctypes.addressof(entry)
        self._run: Callable[..., int] = self.library.run_layer
        self.outputs = outputs

    def compute_map(
        self, source: torch.Tensor, sizes: tuple[int, ...], second: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(images, channels, height, width) to (images, outputs, *sizes), channels-last.

        ``second`` has the result's shape.
        """
        source = source.contiguous(memory_format=_PLANES)
        images, _, height, width = source.shape
        down, across = sizes
        target = _empty((images, self.outputs, down, across), memory_format=_PLANES)
        if second is not None:
            second = second.contiguous(memory_format=_PLANES)
        self._compute(images, height, width, down, across, source, second, target)
        return target

    def compute_rows(
        self, source: torch.Tensor, second: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(…, channels) to (…, outputs), row-major. ``second`` has the result's shape."""
        source = source.contiguous()
        target = _empty((*source.shape[:-1], self.outputs))
        if second is not None:
            second = second.contiguous()
        rows = target.numel() // self.outputs
        self._compute(1, 1, rows, 1, rows, source, second, target)
        return target

    def _compute(
        self,
        images: int,
        height: int,
        width: int,
        down: int,
        across: int,
        source: torch.Tensor,
        second: torch.Tensor | None,
        target: torch.Tensor,
    ) -> None:
        failed = self._run(
            self._address, self.threads(), images, height, width, down, across, source.data_ptr(),
            None if second is None else second.data_ptr(), target.data_ptr(),
        )  # fmt: skip
        if failed:
            raise MemoryError(f"a layer of {self.outputs} outputs has no memory to work in")


def _loaded() -> Library:
    """Precondition: ``library_refusal`` was None in this process."""
    found = library()
    if found is None:
        raise RuntimeError(f"the compiled library is not there: {absence()}")
    return found
