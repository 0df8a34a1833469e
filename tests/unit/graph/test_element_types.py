"""Element types without ``onnx`` are those of the installed ``onnx``."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

from brisk.graph.files.element_types import (
    COMPLEX,
    PACKED,
    dtype_of_element,
    dtype_of_name,
    element_of_dtype,
    name_of_element,
)

ELEMENTS = [value for value in TensorProto.DataType.values() if value != TensorProto.UNDEFINED]


@pytest.mark.parametrize("element", ELEMENTS)
def test_a_dtype_is_the_one_that_onnx_names(element: int) -> None:
    dtype = dtype_of_element(element)
    assert dtype == np.dtype(helper.tensor_dtype_to_np_dtype(element))
    name = name_of_element(element)
    assert name is not None
    assert element_of_dtype(name) == element
    assert dtype_of_name(name) == dtype


def test_what_has_no_dtype_has_no_name() -> None:
    for element in (TensorProto.UNDEFINED, 1000):
        with pytest.raises(KeyError):
            dtype_of_element(element)
        assert name_of_element(element) is None


def test_packed_and_complex_types_are_those_of_onnx() -> None:
    names = ("INT4", "UINT4", "INT2", "UINT2", "FLOAT4E2M1")
    elements = {getattr(TensorProto, name) for name in names if hasattr(TensorProto, name)}
    assert elements <= PACKED
    assert {TensorProto.COMPLEX64, TensorProto.COMPLEX128} == COMPLEX
