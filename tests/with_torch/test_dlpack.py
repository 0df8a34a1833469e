"""BF16 by DLPack, with torch as the other end."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from torch.utils.dlpack import from_dlpack, to_dlpack  # type: ignore[attr-defined]

from brisk.errors import InternalError
from brisk.stub.dlpack import bits_of, capsule_of

SHAPES = [(), (1,), (7,), (2, 3), (2, 0, 3), (0,), (2, 1, 3, 4)]


def bits(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(2).integers(0, 2**16, shape, dtype=np.uint16)


@pytest.mark.parametrize("shape", SHAPES)
def test_torch_sees_the_bits_that_were_exported(shape: tuple[int, ...]) -> None:
    exported = np.asarray(bits(shape))
    tensor = from_dlpack(capsule_of(exported))
    assert (tensor.dtype, tuple(tensor.shape)) == (torch.bfloat16, shape)
    np.testing.assert_array_equal(tensor.view(torch.int16).numpy().view(np.uint16), exported)


@pytest.mark.parametrize("shape", SHAPES)
def test_bits_of_a_tensor_of_torch_are_copied(shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape).to(torch.bfloat16)
    copied = bits_of(to_dlpack(tensor))
    expected = tensor.view(torch.int16).numpy().view(np.uint16).copy()
    tensor.fill_(3.0)
    assert copied.dtype == np.uint16
    np.testing.assert_array_equal(copied, expected)


def test_a_part_of_a_larger_tensor_begins_where_it_begins() -> None:
    whole = torch.arange(12).to(torch.bfloat16).reshape(4, 3)
    copied = bits_of(to_dlpack(whole[2:]))
    np.testing.assert_array_equal(copied, whole.view(torch.int16).numpy().view(np.uint16)[2:])


def test_memory_is_held_for_as_long_as_it_is_used_and_no_longer() -> None:
    exported = np.full((1000, 100), 0x3F80, np.uint16)
    is_held = weakref.ref(exported)
    tensor = from_dlpack(capsule_of(exported))
    del exported
    gc.collect()
    assert is_held() is not None
    assert bool((tensor == 1.0).all())
    del tensor
    gc.collect()
    assert is_held() is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int16])
def test_a_tensor_of_another_type_is_refused(dtype: torch.dtype) -> None:
    tensor = torch.zeros(3, dtype=dtype)
    with pytest.raises(InternalError, match="expected BF16 on the CPU"):
        bits_of(to_dlpack(tensor))
