"""Arrays as records of a manifest: dtype, shape, and the blob that holds their elements."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from brisk.artefacts.container import Container
from brisk.artefacts.draft import ContainerDraft
from brisk.errors import ArtefactError
from brisk.graph.files.element_types import dtype_of_name

ArrayRecord: TypeAlias = "list[Any]"
"""``[dtype, shape, blob number]``; ``["string", shape, [text, ...]]``; blob None where absent."""


@functools.lru_cache(64)
def dtype_named(name: object) -> np.dtype:
    """The numpy or ml_dtypes type of that name. Raises ArtefactError where there is none."""
    with contextlib.suppress(KeyError):
        return dtype_of_name(str(name))
    try:
        return np.dtype(str(name))
    except TypeError as error:
        raise ArtefactError(f"there is no dtype {name!r:.40}") from error


def array_bytes(array: np.ndarray) -> np.ndarray:
    """The elements as bytes, in row-major order; a view where they lie so."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def write_array(array: np.ndarray, draft: ContainerDraft) -> ArrayRecord:
    if array.dtype.kind in "OUS":
        return ["string", list(array.shape), [str(item) for item in array.reshape(-1)]]
    return [array.dtype.name, list(array.shape), draft.add(array_bytes(array))]


def read_array(record: Sequence[Any], container: Container) -> np.ndarray:
    """The array, a view of the container; one without its elements is a poisoned placeholder.

    Raises ArtefactError where dtype, shape and size do not fit together.
    """
    name, shape, content = record
    if not all(isinstance(size, int) and size >= 0 for size in shape):
        raise ArtefactError(f"an array of shape {shape}")
    if name == "string":
        return np.array(content, object).reshape(shape)
    dtype = dtype_named(name)
    if content is None:
        return _placeholder(dtype, tuple(shape))
    memory = container.view(content)
    count = 1
    for size in shape:
        count *= size
    if memory.size != count * dtype.itemsize:
        raise ArtefactError(f"an array of {name} {shape} in {memory.size} bytes")
    return memory.view(dtype).reshape(shape)


@functools.lru_cache(1024)
def _placeholder(dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    """An array of that type which takes no memory and whose elements nobody may read.

    They are NaN where the type has it, so that a solution which reads them is found out.
    """
    element = np.zeros((), dtype)
    if dtype.kind in "fc":
        element = np.full((), np.nan, dtype)
    return np.broadcast_to(element, shape)
