"""Transformed weights as records of an artefact, and back as tensors over its mapped memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from brisk.artefacts.container import Container, ContainerWriter
from brisk.errors import ArtefactError
from brisk.solutions import opaque
from brisk.solutions.values import TORCH_DTYPES, dtype_name, from_numpy, to_numpy

_CPU = torch.device("cpu")


def can_keep(tensor: torch.Tensor) -> bool:
    """Whether the tensor's bytes are all there is to it."""
    if tensor.device != _CPU:
        return False
    return opaque.is_supported() if opaque.is_opaque(tensor) else tensor.layout == torch.strided


def tensor_bytes(tensor: torch.Tensor) -> int:
    """What it takes in memory and on disk."""
    if opaque.is_opaque(tensor):
        return int(torch.ops.mkldnn._nbytes(tensor))
    return tensor.numel() * tensor.element_size()


def write_tensor(tensor: torch.Tensor, writer: ContainerWriter) -> dict[str, Any]:
    """``blob`` holds the elements with the dimensions in ``order``, outermost first.

    An opaque tensor has ``metadata`` instead of ``order``. Precondition: ``can_keep``.
    """
    record: dict[str, Any] = {"dtype": dtype_name(tensor), "shape": list(tensor.shape)}
    if opaque.is_opaque(tensor):
        kept = opaque.opaque_content(tensor)
        metadata = writer.add(np.array(kept.metadata))
        return record | {"blob": writer.add(np.array(kept.content)), "metadata": metadata}
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    dense = tensor.permute(order).contiguous()
    content = to_numpy(dense).reshape(-1).view(np.uint8)
    return record | {"blob": writer.add(content), "order": order}


def tensor_within(tensor: torch.Tensor, blob: int, offset: int) -> dict[str, Any]:
    """A record of a contiguous tensor whose elements lie in a blob from byte ``offset`` on."""
    record = {"dtype": dtype_name(tensor), "shape": list(tensor.shape)}
    return record | {"blob": blob, "order": list(range(tensor.dim())), "offset": offset}


class MappedTensors:
    """Tensors over a container's memory; nothing is copied. Thread-safe."""

    def __init__(self, container: Container) -> None:
        self._container = container
        self._whole: dict[torch.dtype, torch.Tensor] = {}

    def read(self, record: Mapping[str, Any]) -> torch.Tensor:
        """The tensor of a record.

        Precondition: the container was written by a process of these libraries on this machine.
        Raises ArtefactError where the record and its blobs do not fit together.
        """
        container = self._container
        dtype, shape = TORCH_DTYPES.get(record["dtype"]), record["shape"]
        if dtype is None or not all(isinstance(size, int) and size >= 0 for size in shape):
            raise ArtefactError(f"{container.path}: a tensor of {record['dtype']} {shape}")
        if "metadata" in record:
            return self._opaque(record, dtype)
        order = record["order"]
        if sorted(order) != list(range(len(shape))):
            raise ArtefactError(f"{container.path}: a tensor with the dimensions {order}")
        offset, size, _ = container.place(record["blob"])
        within, taken = record.get("offset"), math.prod(shape) * dtype.itemsize
        fits = size == taken if within is None else 0 <= within <= size - taken
        if not fits:
            raise ArtefactError(f"{container.path}: a tensor of {shape} in {size} bytes")
        offset += within or 0
        strides, step = [1] * len(shape), 1
        for axis in reversed(order):
            strides[axis] = step
            step *= max(shape[axis], 1)
        return self._as(dtype).as_strided(shape, strides, offset // dtype.itemsize)

    def _opaque(self, record: Mapping[str, Any], dtype: torch.dtype) -> torch.Tensor:
        container = self._container
        if not opaque.is_mappable():
            raise ArtefactError(f"{container.path}: oneDNN's layouts cannot be mapped here")
        content, metadata = container.view(record["blob"]), container.view(record["metadata"])
        return opaque.opaque_tensor(content, metadata, dtype, record["shape"])

    def _as(self, dtype: torch.dtype) -> torch.Tensor:
        """The whole file but for its last odd bytes: one view for all tensors of a dtype."""
        whole = self._whole.get(dtype)
        if whole is None:
            memory = self._container.memory
            even = memory[: memory.size // dtype.itemsize * dtype.itemsize]
            flat = from_numpy(even, _CPU)
            assert isinstance(flat, torch.Tensor)
            whole = self._whole[dtype] = flat.view(dtype)
        return whole


def tensor_blobs(record: Mapping[str, Any]) -> list[int]:
    return [record[name] for name in ("blob", "metadata") if name in record]
