"""Tensors between shared memory and a program's values.

Inputs are views of the frontend's memory, never copied on a CPU. Outputs are copied once, from
where the last kernel left them, in whatever layout, into row-major shared memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch

from brisk.errors import InternalError, InvalidRequestError
from brisk.solutions.base import Value
from brisk.solutions.values import TORCH_DTYPES, dtype_name
from brisk.wire import strings
from brisk.wire.arena import ALIGNMENT, Arena, ArenaView
from brisk.wire.datatypes import BY_ELEMENT_NAME, DATATYPES
from brisk.wire.records import Region, TensorRecord

_CPU = torch.device("cpu")


def read_tensor(record: TensorRecord, arena: ArenaView) -> Value:
    """The tensor of ``record`` on the CPU, as a view where its datatype allows.

    Raises InvalidRequestError where datatype, shape and size do not fit together,
    ProtocolError where the region lies outside shared memory.
    """
    datatype = DATATYPES.get(record.datatype)
    if datatype is None:
        raise InvalidRequestError(
            f"input '{record.name}' has unknown datatype '{record.datatype}'; "
            f"expected one of {', '.join(DATATYPES)}"
        )
    if any(size < 0 for size in record.shape):
        raise InvalidRequestError(f"input '{record.name}' has shape {list(record.shape)}")
    count = math.prod(record.shape)
    memory = arena.memory(record.region)
    if not datatype.item_bytes:
        elements = [
            element.decode("utf-8", "surrogateescape")
            for element in strings.deserialise(memory, count)
        ]
        array = np.empty(count, object)
        array[:] = elements
        return array.reshape(record.shape)
    if len(memory) != count * datatype.item_bytes:
        raise InvalidRequestError(
            f"input '{record.name}' of {datatype.name} {list(record.shape)} takes "
            f"{count * datatype.item_bytes} bytes, got {len(memory)}"
        )
    dtype = TORCH_DTYPES[datatype.element_name]
    if not count:
        return torch.empty(record.shape, dtype=dtype)
    return torch.frombuffer(memory, dtype=dtype).view(record.shape)


def write_tensors(
    values: Mapping[str, Value], arena: Arena
) -> tuple[Region | None, tuple[TensorRecord, ...]]:
    """Copy ``values`` into one new region; None where they need no memory.

    Raises InternalError for a value that is no tensor of a Triton datatype, UnavailableError
    where there is no memory.
    """
    plans = [(name, *_measure(name, value)) for name, value in values.items()]
    total = sum(_padded(size) for _, _, _, _, size in plans)
    whole = arena.allocate(total) if total else None
    memory = arena.memory(whole) if whole else memoryview(b"")
    records = []
    offset = 0
    for name, datatype, shape, content, size in plans:
        slab, start = (whole.slab, whole.offset + offset) if whole else (0, 0)
        if size:
            try:
                _copy(content, memory[offset : offset + size])
            except BaseException:
                if whole is not None:
                    arena.free(whole)
                raise
        records.append(TensorRecord(name, datatype, shape, Region(slab, start, size)))
        offset += _padded(size)
    return whole, tuple(records)


def _padded(size: int) -> int:
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def _measure(name: str, value: Value) -> tuple[str, tuple[int, ...], torch.Tensor | bytes, int]:
    """Triton datatype, shape, what to copy, and its size in bytes."""
    if isinstance(value, torch.Tensor):
        datatype = BY_ELEMENT_NAME.get(dtype_name(value))
        if datatype is not None:
            size = value.numel() * datatype.item_bytes
            return datatype.name, tuple(value.shape), value, size
    elif isinstance(value, np.ndarray) and value.dtype.kind in "OUS":
        data = strings.serialise(value.reshape(-1))
        return "BYTES", value.shape, data, len(data)
    elif value is None:
        raise InternalError(f"output '{name}' has no value")
    kind = "a sequence" if isinstance(value, list) else f"a tensor of {dtype_name(value)}"
    raise InternalError(f"output '{name}' is {kind}, for which Triton has no datatype")


def _copy(content: torch.Tensor | bytes, memory: memoryview) -> None:
    if isinstance(content, bytes):
        memory[:] = content
    else:
        target = torch.frombuffer(memory, dtype=content.dtype)
        target.view_as(content).copy_(content)
