"""Arrays of ONNX tensors; where others keep their data."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

import numpy as np
from onnx import TensorProto, numpy_helper

from brisk.errors import InvalidModelError
from brisk.graph.files.element_types import PACKED, dtype_of_element

MOST_DIMENSIONS, MOST_ELEMENTS = 64, 1 << 62
"""The most dimensions of numpy's arrays, and more elements than any memory holds."""


def count_elements(tensor: TensorProto, label: str) -> int:
    """Return the number of elements that a tensor has by its shape.

    Raises InvalidModelError, which begins with ``label``, if no tensor can have that shape.
    """
    if len(tensor.dims) > MOST_DIMENSIONS:
        raise InvalidModelError(
            f"{label} has {len(tensor.dims)} dimensions, expected at most {MOST_DIMENSIONS}"
        )
    shape = list(tensor.dims)
    if any(size < 0 for size in shape):
        raise InvalidModelError(f"{label} has a negative dimension: {shape}")
    count = prod(shape)
    if count > MOST_ELEMENTS:
        raise InvalidModelError(
            f"{label} of shape {shape} has more elements than the {MOST_ELEMENTS} that it may have"
        )
    return count


def read_tensor(tensor: TensorProto) -> np.ndarray:
    """Return the array of ``tensor``, whose message holds its data; strings as an object array of
    str. Raises InvalidModelError naming the tensor."""
    label = f"tensor '{tensor.name}'"
    count, shape = count_elements(tensor, label), tuple(tensor.dims)
    try:
        dtype = dtype_of_element(tensor.data_type)
    except (KeyError, TypeError) as error:
        raise InvalidModelError(f"{label} has unknown element type {tensor.data_type}") from error
    is_raw = tensor.HasField("raw_data")
    if is_raw and tensor.data_type == TensorProto.STRING:
        raise InvalidModelError(f"{label} holds strings as raw data, which ONNX forbids")
    if is_raw and tensor.data_type not in PACKED:
        expected = count * dtype.itemsize
        if len(tensor.raw_data) != expected:
            raise InvalidModelError(
                f"{label} of shape {list(shape)} and type {dtype} needs {expected} bytes, "
                f"the file holds {len(tensor.raw_data)}"
            )
        return np.frombuffer(tensor.raw_data, dtype).reshape(shape)
    try:
        return np.asarray(numpy_helper.to_array(tensor))
    except (ValueError, TypeError, UnicodeDecodeError) as error:
        raise InvalidModelError(f"{label} cannot be decoded: {error}") from error


class ExternalRange(NamedTuple):
    """The place of a tensor's data in a file."""

    location: str
    offset: int
    length: int
    """The number of bytes; 0: as many as the tensor's shape needs."""


def external_range(tensor: TensorProto) -> ExternalRange:
    """Return the place of a tensor's external data.

    Raises InvalidModelError naming the tensor if it is missing or malformed.
    """
    label = f"tensor '{tensor.name}'"
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    if not location:
        raise InvalidModelError(f"{label} keeps its data in a file, but none can be located")
    try:
        offset = int(entries.get("offset", 0))
        length = int(entries.get("length", 0))
    except ValueError as error:
        raise InvalidModelError(f"{label} has a malformed external data entry: {error}") from error
    return ExternalRange(location, offset, length)
