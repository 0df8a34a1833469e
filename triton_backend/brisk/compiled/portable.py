"""A network's steps and their weights as one piece of bytes, from which another process makes it.

First the table of steps, in which addresses are offsets from the beginning, then the weights.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_float, c_void_p

import numpy as np

from brisk.compiled.bounds import constant_floats
from brisk.compiled.table import Kind, StepEntry

_ALIGNMENT = 64
_FIELDS = ("weights", "bias")


def pack_steps(
    entries: Sequence[StepEntry], constants: Sequence[Sequence[np.ndarray | None]]
) -> bytes:
    """``constants``: of each step its weights and bias, float32 and C-contiguous."""
    table = (StepEntry * len(entries))(*entries)
    parts: list[bytes] = []
    offset = ctypes.sizeof(table)
    for entry, arrays in zip(table, constants, strict=True):
        for field, array in zip(_FIELDS, arrays, strict=True):
            if array is None:
                continue
            padding = -offset % _ALIGNMENT
            parts += [bytes(padding), array.tobytes()]
            offset += padding
            _point(entry, field, offset)
            offset += array.nbytes
    return b"".join([bytes(table), *parts])


def unpack_steps(
    memory: mmap.mmap,
    count: int,
    check: Callable[[ctypes.Array[StepEntry]], None],
    panel: int,
    block: int,
) -> ctypes.Array[StepEntry]:
    """The steps in ``memory``, their weights there, too; it must be writable and stay mapped.

    ``check``: raises ValueError where the table is none that may be run. ``panel``, ``block``: of
    the library. Raises ValueError where it is too short for so many, or for their weights.
    """
    if count < 1:
        raise ValueError(f"{count} steps")
    table = (StepEntry * count).from_buffer(memory)
    check(table)
    base = ctypes.addressof(table)
    for entry in table:
        for field, floats in zip(_FIELDS, constant_floats(entry, panel, block), strict=True):
            offset = ctypes.cast(getattr(entry, field), c_void_p).value
            if offset is None:
                if floats and (field == "weights" or entry.kind == Kind.LAYER):
                    raise ValueError(f"a step of kind {entry.kind} without {field}")
                continue
            if offset % _ALIGNMENT or offset + 4 * floats > len(memory):
                raise ValueError(f"{floats} weights at {offset} of {len(memory)} bytes")
            _point(entry, field, base + offset)
    return table


def _point(entry: StepEntry, field: str, address: int) -> None:
    setattr(entry, field, ctypes.cast(address, POINTER(c_float)))
