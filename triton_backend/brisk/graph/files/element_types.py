"""ONNX's element types and numpy's dtypes, without importing ``onnx``, which takes 50 ms."""

from __future__ import annotations

from functools import cache

import numpy as np

STRING = 8
COMPLEX = frozenset({14, 15})
GIVEN = frozenset(range(1, 17)) - COMPLEX
"""The types that a request can give: those for which Triton has a datatype."""
PACKED_BITS = {21: 4, 22: 4, 23: 4, 25: 2, 26: 2}
"""The bits of an element, for the types of which a byte holds several."""
PACKED = frozenset(PACKED_BITS)

_OF_NUMPY = (
    *("float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "string", "bool"),
    *("float16", "float64", "uint32", "uint64", "complex64", "complex128"),
)
_OF_ML_DTYPES = (
    *("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    *("uint4", "int4", "float4_e2m1fn", "float8_e8m0fnu", "uint2", "int2"),
    *("float6_e2m3fn", "float6_e3m2fn"),
)
_ELEMENTS = {name: element for element, name in enumerate((*_OF_NUMPY, *_OF_ML_DTYPES), 1)}
_NAMES = {element: name for name, element in _ELEMENTS.items()}


@cache
def dtype_of_element(element: int) -> np.dtype:
    """Return the numpy (or ml_dtypes) dtype of a TensorProto.DataType; KeyError if there is
    none."""
    name = _NAMES[element]
    if element <= len(_OF_NUMPY):
        return np.dtype(object if element == STRING else name)
    import ml_dtypes  # few models need it

    try:
        return np.dtype(getattr(ml_dtypes, name))
    except AttributeError:  # of a later version than the installed one
        raise KeyError(element) from None


def name_of_element(element: int) -> str | None:
    """Return the dtype's name of a TensorProto.DataType (``name_of_dtype``); None: there is
    none."""
    try:
        return name_of_dtype(dtype_of_element(element))
    except KeyError:
        return None


def element_of_dtype(name: str) -> int:
    """Return the TensorProto.DataType of a dtype's name (``float32``, ``bfloat16``, ``string`` …).

    Raises KeyError.
    """
    return _ELEMENTS[name]


def dtype_of_name(name: str) -> np.dtype:
    """Return the dtype of a name of ``name_of_dtype``; KeyError for a name that ONNX does not
    have."""
    return dtype_of_element(element_of_dtype(name))


@cache
def name_of_dtype(dtype: np.dtype) -> str:
    """Return the dtype's ``name``, which numpy puts together anew at each access."""
    return "string" if dtype.kind in "OUS" else dtype.name
