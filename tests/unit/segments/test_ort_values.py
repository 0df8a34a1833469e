"""Arrays and OrtValues of types that numpy has only through ``ml_dtypes``, or that share bytes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from brisk.segments.session import onnxruntime
from brisk.segments.values import to_array, to_ort_value


@pytest.mark.parametrize(
    "dtype",
    [np.uint8, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2],
)
def test_a_value_comes_back_as_the_array_that_it_was_made_of(dtype: type) -> None:
    array = np.array([[1, 2], [0, 4]]).astype(dtype)
    found = to_array(to_ort_value(array))
    assert found.dtype == array.dtype, "ONNX Runtime says uint8 of float8_e4m3fn"
    assert found.tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4])
def test_types_of_several_elements_in_a_byte_are_refused_and_not_read_beyond_their_end(
    dtype: type,
) -> None:
    array = np.array([1, 2, 3, 4]).astype(dtype)
    with pytest.raises(TypeError, match=r"a tensor of u?int4 has no array: a byte holds several"):
        to_ort_value(array)
    make = onnxruntime().capi._pybind_state.OrtValue.ortvalue_from_numpy_with_onnx_type
    element = {ml_dtypes.uint4: 21, ml_dtypes.int4: 22}[dtype]
    value = make(np.zeros(64, np.uint8), element)
    with pytest.raises(TypeError, match="a byte holds several"):
        to_array(value)
