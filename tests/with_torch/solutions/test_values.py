"""Values between numpy and torch: same bits, no copies on the CPU, no writes."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from brisk.solutions.values import TORCH_DTYPES, dtype_name, from_numpy, to_numpy

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", sorted(TORCH_DTYPES))
def test_every_dtype_that_torch_has_comes_back_with_the_same_bits(name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    array = np.array([[0, 1], [1, 0]]).astype(dtype)
    value = from_numpy(array, CPU)
    assert isinstance(value, torch.Tensor)
    assert dtype_name(value) == name
    back = to_numpy(value)
    assert back.dtype == dtype
    assert back.tobytes() == array.tobytes()


@pytest.mark.parametrize("name", ["int4", "uint4", "int2", "float4_e2m1fn"])
def test_dtypes_below_8_bits_stay_arrays(name: str) -> None:
    array = np.array([0, 1, 1]).astype(getattr(ml_dtypes, name))
    assert from_numpy(array, CPU) is array
    assert to_numpy(array) is array


def test_strings_stay_object_arrays_of_str() -> None:
    made: Any = from_numpy(np.array([["a", "bé"]]), CPU)
    assert made.dtype == object
    assert dtype_name(made) == "string"
    assert made.tolist() == [["a", "bé"]]


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_read_only_arrays_are_shared_without_a_warning(dtype: Any) -> None:
    array = np.arange(4).astype(dtype)
    address = array.ctypes.data
    array.flags.writeable = False
    value: Any = from_numpy(array, CPU)
    assert value.data_ptr() == address
    del array
    assert value.float().tolist() == [0, 1, 2, 3]


def test_reversed_and_scalar_arrays_are_taken() -> None:
    backwards: Any = from_numpy(np.arange(3)[::-1], CPU)
    assert backwards.tolist() == [2, 1, 0]
    scalar: Any = from_numpy(np.float32(1.5), CPU)
    assert scalar.shape == ()


def test_sequences_are_converted_item_by_item_and_nothing_stays_nothing() -> None:
    value: Any = from_numpy([np.zeros(2), None], CPU)
    assert isinstance(value[0], torch.Tensor)
    assert value[1] is None
    assert isinstance(to_numpy(value)[0], np.ndarray)


def test_a_strided_tensor_keeps_its_logical_order() -> None:
    x = torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last)
    np.testing.assert_array_equal(to_numpy(x).reshape(-1), np.arange(24.0))
