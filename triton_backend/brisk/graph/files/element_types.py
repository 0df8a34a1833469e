"""ONNX's element types and numpy's dtypes, without importing ``onnx``, which takes 50 ms."""

from __future__ import annotations

from functools import cache

import numpy as np

STRING = 8
COMPLEX = frozenset({14, 15})
PACKED = frozenset({21, 22, 23, 25, 26})
"""Types of which a byte holds several elements: of 4 and of 2 bits."""

_OF_NUMPY = {
    1: "float32",
    2: "uint8",
    3: "int8",
    4: "uint16",
    5: "int16",
    6: "int32",
    7: "int64",
    STRING: "object",
    9: "bool",
    10: "float16",
    11: "float64",
    12: "uint32",
    13: "uint64",
    14: "complex64",
    15: "complex128",
}
_OF_ML_DTYPES = {
    16: "bfloat16",
    17: "float8_e4m3fn",
    18: "float8_e4m3fnuz",
    19: "float8_e5m2",
    20: "float8_e5m2fnuz",
    21: "uint4",
    22: "int4",
    23: "float4_e2m1fn",
    24: "float8_e8m0fnu",
    25: "uint2",
    26: "int2",
    27: "float6_e2m3fn",
    28: "float6_e3m2fn",
}

_ELEMENTS = {
    **{name: element for element, name in (_OF_NUMPY | _OF_ML_DTYPES).items() if name != "object"},
    "string": STRING,
}


@cache
def dtype_of_element(element: int) -> np.dtype:
    """numpy (or ml_dtypes) dtype of a TensorProto.DataType; KeyError where there is none."""
    if element in _OF_NUMPY:
        return np.dtype(_OF_NUMPY[element])
    import ml_dtypes  # few models need it

    try:
        return np.dtype(getattr(ml_dtypes, _OF_ML_DTYPES[element]))
    except AttributeError:  # of a later version than the installed one
        raise KeyError(element) from None


def name_of_element(element: int) -> str | None:
    """As ``name_of_dtype`` of its dtype; None where there is none."""
    try:
        return name_of_dtype(dtype_of_element(element))
    except KeyError:
        return None


def element_of_dtype(name: str) -> int:
    """TensorProto.DataType of a dtype's name (``float32``, ``bfloat16``, ``string`` …).

    Raises KeyError.
    """
    return _ELEMENTS[name]


def dtype_of_name(name: str) -> np.dtype:
    """The inverse of ``name_of_dtype``; KeyError for a name that ONNX has not."""
    return dtype_of_element(element_of_dtype(name))


@cache
def name_of_dtype(dtype: np.dtype) -> str:
    """Of numpy's ``name``, which is put together anew by each look."""
    return "string" if dtype.kind in "OUS" else dtype.name
