"""A run of small layers as one kernel."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from brisk.compiled.library import Library, library
from brisk.native.sketch import Sketch, Steps, View
from brisk.solutions.base import Kernel, Value
from brisk.solutions.values import TORCH_DTYPES

_get_num_threads, _empty_like = torch.get_num_threads, torch.empty_like


class _Sharing:
    """``is_on``: another thread computes runs, too, so that none keeps the interpreter's lock."""

    __slots__ = ("is_on",)

    def __init__(self) -> None:
        self.is_on = False


SHARING = _Sharing()
"""Set by whoever has two threads compute."""


@dataclass(frozen=True, slots=True)
class Outside:
    """An input or output of a run as torch has it. ``sizes``: without the batch."""

    sizes: tuple[int, ...]
    dtype: torch.dtype
    order: torch.memory_format

    @classmethod
    def of(cls, view: View, dtype: str) -> Outside:
        is_last = len(view.sizes) == 3 and not view.planar
        order = torch.channels_last if is_last else torch.contiguous_format
        return cls(view.sizes, TORCH_DTYPES[dtype], order)

    @property
    def floats(self) -> int:
        """Room of an image, as the executor counts it."""
        return math.prod(self.sizes) * self.dtype.itemsize // 4

    def shape(self, images: int) -> torch.Size:
        return torch.Size((images, *self.sizes))

    def template(self, images: int) -> torch.Tensor:
        """A tensor to allocate others like."""
        return torch.empty(self.shape(images), dtype=self.dtype, memory_format=self.order)


class SmallRun:
    """Computes a sketch for up to ``most_images`` images; a kernel of the run's inputs.

    ``by_layers`` does the same layer by layer: until the executor has been compiled, and for
    inputs that are not of the sketch's shapes. Calls must not overlap in time; the interpreter's
    lock sees to it, which no call of the executor gives up, unless ``unlocked``, or where others
    are ``SHARING`` the processors.
    """

    __slots__ = (
        *("__weakref__", "_by_layers", "_drawn", "_images", "_inputs", "_inputs_address"),
        *("_library", "_network", "_orders", "_outputs", "_outputs_address"),
        *("_reserve", "_room", "_run", "_run_unlocked", "_shapes", "_steps", "_templates"),
        *("_threads", "_unlocked", "_use_threads", "most_images", "operands", "results"),
    )

    def __init__(
        self,
        drawn: Sketch | Steps,
        operands: Sequence[Outside],
        results: Sequence[Outside],
        most_images: int,
        by_layers: Kernel,
        unlocked: bool = False,
    ) -> None:
        """``drawn``: a sketch, or its steps."""
        self.most_images = most_images
        self.operands = tuple(operands)
        self.results = tuple(results)
        self._room = 0
        """Images that there is scratch memory for."""
        self._unlocked = unlocked
        self._drawn: Sketch | Steps | None = drawn
        self._orders = tuple(operand.order for operand in operands)
        self._by_layers = by_layers
        self._inputs = (ctypes.c_void_p * len(self.operands))()
        self._outputs = (ctypes.c_void_p * len(self.results))()
        self._inputs_address = ctypes.addressof(self._inputs)
        self._outputs_address = ctypes.addressof(self._outputs)
        self._library: Library | None = None
        self._network: int | None = None
        self._threads = 1
        self._images = 0
        """Of the call before, for which shapes and templates are."""
        self._shapes = [operand.shape(0) for operand in self.operands]
        self._templates: list[torch.Tensor] = []
        executor = library()
        if executor is not None:
            self._prepare(executor)

    def hold_lock(self, holds: bool) -> None:
        """Whether calls keep the interpreter's lock from now on; while one computes, it stays."""
        self._unlocked = not holds
        if self._library is not None:
            self._run_unlocked = self._library.run_unlocked
            self._run = self._library.run if holds else self._run_unlocked

    def __call__(self, *operands: torch.Tensor) -> Sequence[Value]:
        inputs, outputs = self._inputs, self._outputs
        copies = []
        for place, (operand, order) in enumerate(zip(operands, self._orders, strict=False)):
            if operand.shape != self._shapes[place]:
                return self._take_others(operands)
            if not operand.is_contiguous(memory_format=order):
                copies.append(operand.contiguous(memory_format=order))
                inputs[place] = copies[-1].data_ptr()
            else:
                inputs[place] = operand.data_ptr()
        made = [_empty_like(template) for template in self._templates]
        for place, output in enumerate(made):
            outputs[place] = output.data_ptr()
        threads = _get_num_threads()
        if threads > self._threads:
            self._use_threads(threads)
            self._threads = threads
        run = self._run_unlocked if SHARING.is_on else self._run
        if run(self._network, self._images, threads, self._inputs_address, self._outputs_address):
            raise MemoryError("a run of small layers has no memory to work in")
        return made

    def _take_others(self, operands: Sequence[torch.Tensor]) -> Sequence[Value]:
        """Operands of other shapes than before: adopt these if they fit the sketch."""
        images = operands[0].shape[0]
        shapes = [operand.shape(images) for operand in self.operands]
        fits = all(one.shape == shape for one, shape in zip(operands, shapes, strict=True))
        fits &= all(
            one.dtype is kind.dtype for one, kind in zip(operands, self.operands, strict=True)
        )
        if not (fits and 0 < images <= self.most_images and self._is_prepared()):
            return self._by_layers(*operands)
        if images > self._room:
            assert self._network is not None
            self._reserve(self._network, images)
            self._room = images
        self._images, self._shapes = images, shapes
        self._templates = [result.template(images) for result in self.results]
        return self(*operands)

    def _is_prepared(self) -> bool:
        """Prepare if the executor is there by now."""
        executor = library()
        if executor is not None and self._network is None:
            self._prepare(executor)
        return executor is not None

    def _prepare(self, executor: Library) -> None:
        drawn = self._drawn
        assert drawn is not None
        steps = drawn.compiled() if isinstance(drawn, Sketch) else drawn
        self._network = steps.network(executor)
        self._library = executor
        self.hold_lock(not self._unlocked)
        self._reserve, self._use_threads = executor.reserve, executor.use_threads
        self._steps = steps
        self._drawn = None
        weakref.finalize(self, executor.delete, self._network)
