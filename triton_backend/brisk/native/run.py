"""A run of small layers as one kernel."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from brisk.native.library import Library, library
from brisk.native.sketch import Sketch
from brisk.solutions.base import Kernel, Value

_get_num_threads = torch.get_num_threads


@dataclass(frozen=True, slots=True)
class Result:
    """An output of a run: what to allocate for ``images`` images."""

    sizes: tuple[int, ...]
    dtype: torch.dtype
    channels_last: bool

    def allocate(self, images: int) -> torch.Tensor:
        if self.channels_last:
            shape = (images, *self.sizes)
            return torch.empty(shape, dtype=self.dtype, memory_format=torch.channels_last)
        return torch.empty((images, *self.sizes), dtype=self.dtype)


class SmallRun:
    """Computes a sketch for up to ``most_images`` images; a kernel of the run's inputs.

    ``by_layers`` does the same layer by layer: until the executor has been compiled, and for
    inputs that are not of the sketch's shapes. Calls must not overlap in time; the interpreter's
    lock sees to it.
    """

    __slots__ = (
        *("__weakref__", "_accepted", "_by_layers", "_input_array", "_input_places", "_network"),
        *("_output_array", "_output_places", "_results", "_run", "_sizes", "_sketch", "_threads"),
        *("_use_threads", "most_images"),
    )

    def __init__(
        self,
        sketch: Sketch,
        sizes: Sequence[tuple[int, ...]],
        results: Sequence[Result],
        most_images: int,
        by_layers: Kernel,
    ) -> None:
        """``sizes``: of each input, without the batch."""
        self.most_images = most_images
        self._sketch: Sketch | None = sketch
        self._sizes = tuple(sizes)
        self._results = tuple(results)
        self._by_layers = by_layers
        self._accepted: list[torch.Size | None] = [None] * len(self._sizes)
        self._input_array = (ctypes.c_void_p * len(self._sizes))()
        self._output_array = (ctypes.c_void_p * len(self._results))()
        self._input_places = ctypes.addressof(self._input_array)
        self._output_places = ctypes.addressof(self._output_array)
        self._network: int | None = None
        self._threads = 1
        executor = library()
        if executor is not None:
            self._prepare(executor)

    def __call__(self, *operands: torch.Tensor) -> Sequence[Value]:
        if self._network is None and not self._is_prepared():
            return self._by_layers(*operands)
        images = operands[0].shape[0]
        kept = []
        for place, operand in enumerate(operands):
            shape = operand.shape
            if shape != self._accepted[place]:
                if shape[1:] != self._sizes[place] or not 0 < images <= self.most_images:
                    return self._by_layers(*operands)
                self._accepted[place] = shape
            if shape[0] != images:
                return self._by_layers(*operands)
            if not operand.is_contiguous():
                operand = operand.contiguous()
                kept.append(operand)
            self._input_array[place] = operand.data_ptr()
        outputs = [result.allocate(images) for result in self._results]
        for place, output in enumerate(outputs):
            self._output_array[place] = output.data_ptr()
        threads = _get_num_threads()
        if threads > self._threads:
            self._use_threads(threads)
            self._threads = threads
        self._run(self._network, images, threads, self._input_places, self._output_places)
        return outputs

    def _is_prepared(self) -> bool:
        """Prepare if the executor is there by now."""
        executor = library()
        if executor is not None:
            self._prepare(executor)
        return executor is not None

    def _prepare(self, executor: Library) -> None:
        sketch = self._sketch
        assert sketch is not None
        floats = sketch.place(self.most_images)
        self._network = executor.new_network([step.entry() for step in sketch.steps], floats)
        self._run, self._use_threads = executor.run, executor.use_threads
        self._sketch = None
        weakref.finalize(self, executor.delete, self._network)
