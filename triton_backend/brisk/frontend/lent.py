"""A network that the worker has lent: requests that fit it are answered where they arrive."""

from __future__ import annotations

import ctypes
import functools
import math
import mmap
import os
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from brisk.compiled.bounds import check_steps
from brisk.compiled.library import Library
from brisk.compiled.portable import unpack_steps
from brisk.wire.datatypes import DATATYPES
from brisk.wire.records import Lend, TensorForm


class _Place(NamedTuple):
    """A tensor of the network: ``shape`` without the batch."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, form: TensorForm) -> _Place:
        """Raises ValueError for a shape without elements."""
        if not all(size >= 1 for size in form.shape):
            raise ValueError(f"'{form.name}' of {form.shape}")
        return cls(form.name, DATATYPES[form.datatype].numpy, form.shape)

    @property
    def floats(self) -> int:
        """Room of an image, as the executor counts it."""
        return math.prod(self.shape) * self.dtype.itemsize // 4


class LentNetwork:
    """Computes in the calling thread, which must always be the same one."""

    def __init__(self, record: Lend, descriptor: int) -> None:
        """Takes ``descriptor`` over. Raises CompilerError where the library cannot be used,
        OSError or ValueError where the network cannot be read or would leave its memory,
        MemoryError.
        """
        try:
            if not 0 < record.size <= os.fstat(descriptor).st_size:
                raise ValueError(f"a network of {record.size} bytes")
            memory = mmap.mmap(-1, record.size)  # a copy, which its sender cannot change
            if os.preadv(descriptor, [memory], 0) != record.size:
                raise ValueError(f"a network of fewer than {record.size} bytes")
        finally:
            os.close(descriptor)
        library = Library(Path(record.library))
        self._inputs = tuple(map(_Place.of, record.inputs))
        self._outputs = tuple(map(_Place.of, record.outputs))
        if any(place.dtype != np.float32 for place in self._inputs):
            raise ValueError("an input that is not float32")
        floats = ([place.floats for place in each] for each in (self._inputs, self._outputs))
        check = functools.partial(
            check_steps,
            floats=record.floats,
            images=record.images,
            inputs=next(floats),
            outputs=next(floats),
            block=library.block,
        )
        self._steps = unpack_steps(memory, record.steps, check, library.panel, library.block)
        self._network = library.new_network(self._steps, record.floats)
        library.reserve(self._network, record.images)
        self._run = library.run
        self._most_images = record.images
        self._sources = (ctypes.c_void_p * len(self._inputs))()
        self._targets = (ctypes.c_void_p * len(self._outputs))()
        self._addresses = ctypes.addressof(self._sources), ctypes.addressof(self._targets)
        weakref.finalize(self, library.delete, self._network)

    def compute(
        self, inputs: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], int] | None:
        """All outputs by name, and the time it took in ns; None where ``inputs`` do not fit.

        What is wrong with them is for the worker to say.
        """
        if len(inputs) != len(self._inputs):
            return None
        images = 0
        for index, place in enumerate(self._inputs):
            array = inputs.get(place.name)
            if array is None or array.dtype != place.dtype:
                return None
            if not array.ndim or array.shape[1:] != place.shape:
                return None
            images = images or len(array)
            if len(array) != images or not array.flags.c_contiguous:
                return None
            self._sources[index] = array.ctypes.data
        if not 0 < images <= self._most_images:
            return None
        made = {
            place.name: np.empty((images, *place.shape), place.dtype) for place in self._outputs
        }
        for index, array in enumerate(made.values()):
            self._targets[index] = array.ctypes.data
        started_ns = time.monotonic_ns()
        if self._run(self._network, images, 1, *self._addresses):
            return None
        return made, time.monotonic_ns() - started_ns
