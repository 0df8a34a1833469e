"""Run-time values on a CPU: numpy arrays where a model begins and ends, OrtValues in between.

Both share memory: no conversion copies, except of strings and of types that numpy has only through
``ml_dtypes``.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, TypeAlias

import numpy as np

from brisk.graph.files.element_types import (
    PACKED,
    dtype_of_element,
    element_of_dtype,
    name_of_dtype,
    name_of_element,
)
from brisk.segments.onnxruntime import onnxruntime

Value: TypeAlias = np.ndarray
"""A value of a request: strings are ``object`` arrays of str, bfloat16 and float8 ``ml_dtypes``
arrays."""


@functools.cache
def _bindings() -> tuple[Any, Any]:
    """Return ONNX Runtime's C++ class OrtValue, and the CPU: its Python wrappers cost 4 us a
    call."""
    capi = onnxruntime().capi._pybind_state
    return capi.OrtValue, capi.OrtDevice(0, 0, 0)


def to_ort_value(array: np.ndarray) -> Any:
    """Return an OrtValue over the array's memory, which must outlive it; strings have none.

    Only C-contiguous arrays share their memory, others are copied. Raises TypeError for a type of
    which a byte holds several elements: numpy has one in each.
    """
    make, cpu = _bindings()
    if array.dtype.isbuiltin == 2:  # of ml_dtypes
        carrier = np.ascontiguousarray(array).view(np.dtype(f"u{array.dtype.itemsize}"))
        element = element_of_dtype(name_of_dtype(array.dtype))
        _refuse_packed(element)
        return make.ortvalue_from_numpy_with_onnx_type(carrier, element)
    return make.ortvalue_from_numpy(array, cpu)


def to_array(value: Any) -> np.ndarray:
    """Return the array of an OrtValue; it shares its memory if numpy has its type.

    Raises TypeError for a value that is no tensor, and for a type of which a byte holds several
    elements.
    """
    if isinstance(value, np.ndarray):
        return value
    if not value.is_tensor():
        raise TypeError(f"expected a tensor, got {value.data_type()}")
    try:
        array = value.numpy()
    except RuntimeError:  # of a type that numpy knows through ``ml_dtypes`` alone
        _refuse_packed(value.element_type())
        array = np.empty(tuple(value.shape()), dtype_of_element(value.element_type()))
        if array.size:
            ctypes.memmove(array.ctypes.data, value.data_ptr(), array.nbytes)
        return array
    if array.dtype == np.uint8:  # ONNX Runtime gives float8_e4m3fn as uint8, too
        return array.view(dtype_of_element(value.element_type()))
    return array.astype(object) if array.dtype.kind in "US" else array


def _refuse_packed(element: int) -> None:
    if element in PACKED:
        name = name_of_element(element)
        raise TypeError(f"a tensor of {name} has no array: a byte holds several elements")
