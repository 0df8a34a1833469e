"""Tensors between shared memory and a program's values.

Inputs are views of the stub's memory, never copied on a CPU. Outputs are copied once, from where
the last kernel left them, in any layout, into row-major shared memory.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from brisk.errors import InternalError, InvalidRequestError
from brisk.graph.files.element_types import dtype_of_name, name_of_dtype
from brisk.protocol.datatypes import (
    BY_ELEMENT_NAME,
    DATATYPES,
    deserialize_strings,
    serialize_strings,
)
from brisk.protocol.records import Infer, InferForm, Region, TensorForm
from brisk.protocol.shared_memory import Arena, ArenaView, padded
from brisk.segments.values import Value

MAX_VIEWS = 64
"""The most inputs of a peer that are kept as tensors. One more drops them; they are made anew."""


@dataclass(frozen=True, slots=True)
class _Input:
    """An input as its form describes it; ``size`` in bytes. ``dtype`` None: BYTES."""

    form: TensorForm
    dtype: np.dtype | None
    count: int
    size: int


def _input(form: TensorForm) -> _Input:
    """Return the input of ``form``. Raises InvalidRequestError if its datatype or shape is bad."""
    datatype = DATATYPES.get(form.datatype)
    if datatype is None:
        raise InvalidRequestError(
            f"input '{form.name}' has unknown datatype '{form.datatype}'; "
            f"expected one of {', '.join(DATATYPES)}"
        )
    if any(size < 0 for size in form.shape):
        raise InvalidRequestError(
            f"input '{form.name}' has shape {list(form.shape)}; expected sizes of 0 or more"
        )
    count = math.prod(form.shape)
    dtype = dtype_of_name(datatype.element_name) if datatype.item_bytes else None
    return _Input(form, dtype, count, count * datatype.item_bytes)


@lru_cache(1024)
def _inputs_of(form: InferForm) -> tuple[_Input, ...]:
    return tuple(map(_input, form.inputs))


class InputViews:
    """One peer's inputs as arrays over its memory. An input of the same form in the same place, as
    in successive requests, gives the same tensor. Kernels never change it.
    """

    def __init__(self, arena: ArenaView) -> None:
        self._arena = arena
        self._views: dict[tuple[int, int, int], tuple[_Input, Value]] = {}

    def read(self, record: Infer) -> dict[str, Value]:
        """Return the request's inputs on the CPU, by name; as views if their datatypes allow it.

        Raises InvalidRequestError if datatype, shape and size do not fit together, and
        ProtocolError if a region lies outside shared memory.
        """
        values: dict[str, Value] = {}
        for tensor, region in zip(_inputs_of(record.form), record.regions, strict=True):
            key = (id(tensor), region.slab, region.offset)
            view = self._views.get(key)
            if view is not None and region.size == tensor.size:
                values[tensor.form.name] = view[1]
                continue
            value = values[tensor.form.name] = _read(tensor, self._arena.memory(region))
            if tensor.dtype is not None and tensor.count:
                if len(self._views) >= MAX_VIEWS:
                    self._views.clear()
                self._views[key] = tensor, value
        return values

    def clear(self) -> None:
        """Release all views of memory, some of which is about to be unmapped."""
        self._views.clear()


def read_tensor(form: TensorForm, content: bytes) -> Value:
    """Return the tensor in ``content``, in memory of its own.

    Raises InvalidRequestError if datatype, shape and size do not fit together.
    """
    return _read(_input(form), memoryview(bytearray(content)))


def _read(wanted: _Input, memory: memoryview) -> Value:
    if wanted.dtype is None:
        array = np.empty(wanted.count, object)
        array[:] = [
            element.decode("utf-8", "surrogateescape")
            for element in deserialize_strings(memory, wanted.count)
        ]
        return array.reshape(wanted.form.shape)
    if len(memory) != wanted.size:
        form = wanted.form
        raise InvalidRequestError(
            f"input '{form.name}' of {form.datatype} {list(form.shape)} takes "
            f"{wanted.size} bytes, got {len(memory)}"
        )
    if not wanted.count:
        return np.empty(wanted.form.shape, wanted.dtype)
    return np.frombuffer(memory, wanted.dtype).reshape(wanted.form.shape)


def write_tensors(
    values: Mapping[str, Value], arena: Arena
) -> tuple[Region | None, tuple[TensorForm, ...], tuple[Region, ...]]:
    """Copy ``values`` into one new region. Return it (None if they need no memory), and their
    forms and places.

    Tensors of the same names, dtypes and shapes have the same forms, as an object. Raises
    InternalError if a value is no tensor of a Triton datatype, and UnavailableError if there is no
    memory."""
    contents: list[Value] = []
    kinds: list[_Kind] = []
    for name, value in values.items():
        if not isinstance(value, np.ndarray):
            raise InternalError(f"output '{name}' is no tensor")
        if value.dtype.kind in "OUS":
            text = np.frombuffer(serialize_strings(value.reshape(-1)), np.uint8)
            contents.append(text)
            kinds.append((name, None, value.shape, len(text)))
        else:
            contents.append(value)
            kinds.append((name, value.dtype, value.shape, None))
    forms, sizes, total = _layout(tuple(kinds))
    whole = arena.allocate(total) if total else None
    slab, offset = (whole.slab, whole.offset) if whole else (0, 0)
    regions = []
    for content, size in zip(contents, sizes, strict=True):
        region = Region(slab, offset, size)
        if size:
            try:
                _copy(content, arena, region)
            except BaseException:
                if whole is not None:
                    arena.free(whole)
                raise
        regions.append(region)
        offset += padded(size)
    return whole, forms, tuple(regions)


_Kind: TypeAlias = "tuple[str, np.dtype | None, tuple[int, ...], int | None]"
"""An output's name, dtype and shape; for strings no dtype, and the size in bytes."""


@lru_cache(maxsize=256)
def _layout(
    kinds: tuple[_Kind, ...],
) -> tuple[tuple[TensorForm, ...], tuple[int, ...], int]:
    """Return the forms and sizes in bytes of outputs in one region, and the size of the region,
    including padding for alignment.

    Raises InternalError for a dtype that Triton does not have."""
    forms, sizes = [], []
    for name, dtype, shape, size in kinds:
        element = "string" if dtype is None else name_of_dtype(dtype)
        datatype = BY_ELEMENT_NAME.get(element)
        if datatype is None:
            raise InternalError(
                f"output '{name}' is a tensor of {element}, for which Triton has no datatype"
            )
        forms.append(TensorForm(name, datatype.name, shape))
        sizes.append(math.prod(shape) * datatype.item_bytes if size is None else size)
    return tuple(forms), tuple(sizes), sum(map(padded, sizes))


def _copy(content: Value, arena: Arena, region: Region) -> None:
    if content.flags.c_contiguous:
        ctypes.memmove(arena.address(region), content.ctypes.data, region.size)
    else:
        target = np.frombuffer(arena.memory(region), content.dtype)
        np.copyto(target.reshape(content.shape), content)
