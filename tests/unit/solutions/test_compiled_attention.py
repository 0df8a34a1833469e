"""Attention and row normalisation by the compiled library, against double precision."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from brisk.solutions import attention_blocked, normalisation_rows, self_attention_blocked
from brisk.solutions.compiled_layer import CompiledLayer, Fused, padded_bias, panels

pytestmark = pytest.mark.usefixtures("instruction_set")


@pytest.fixture(params=[1, 3], autouse=True)
def _threads(request: pytest.FixtureRequest, threads_restored: None) -> None:
    torch.set_num_threads(request.param)


def attend(*operands: torch.Tensor | None, scale: float = 0.3) -> torch.Tensor:
    return attention_blocked._Call(scale, is_certain=False)(*operands)  # type: ignore[arg-type]


def expected(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    scores = query.double() @ key.double().transpose(2, 3) * 0.3
    if mask is not None:
        scores = scores + mask
    return (scores.softmax(3) @ value.double()).float()


SIZES = [(1, 1, 1, 1, 1), (15, 17, 32, 32, 12), (128, 128, 32, 32, 12), (130, 65, 40, 70, 1)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("mask", [None, "keys", "queries", "all", "one"])
def test_attention_is_as_exact_as_float32_can_be(sizes: tuple[int, ...], mask: str | None) -> None:
    queries, keys, width, value_width, heads = sizes
    torch.manual_seed(0)
    query = torch.randn(2, heads, queries, width)
    key, value = torch.randn(2, heads, keys, width), torch.randn(2, heads, keys, value_width)
    shape = {"keys": (2, 1, 1, keys), "queries": (queries, 1), "all": (2, heads, queries, keys)}
    added = None if mask is None else torch.randn(shape.get(mask, (1,)))
    found = attend(query, key, value, added)
    torch.testing.assert_close(found, expected(query, key, value, added), rtol=1e-5, atol=2e-6)


def test_operands_may_lie_in_any_order_in_memory() -> None:
    torch.manual_seed(1)
    query, value = torch.randn(2, 20, 3, 24).transpose(1, 2), torch.randn(2, 3, 24, 40).mT
    key, mask = torch.randn(24, 40, 3, 2).permute(3, 2, 1, 0), torch.randn(2, 1, 40, 20).mT
    found = attend(query, key, value, mask)
    torch.testing.assert_close(found, expected(query, key, value, mask), rtol=1e-5, atol=2e-6)
    assert found.transpose(1, 2).is_contiguous()


def test_a_call_of_other_shapes_follows_one_of_the_same_kernel() -> None:
    call = attention_blocked._Call(0.3, is_certain=True)
    for keys in (30, 7, 30):
        query, key, value = torch.randn(1, 2, 9, 8), *torch.randn(2, 1, 2, keys, 8)
        torch.testing.assert_close(
            call(query, key, value), expected(query, key, value, None), rtol=1e-5, atol=2e-6
        )
    with pytest.raises(ValueError, match="do not fit together"):
        call(query, key[..., :4], value)


def test_masked_rows_are_zero_and_what_is_not_a_number_stays_in_its_row() -> None:
    query, key, value = torch.randn(3, 1, 1, 20, 16).unbind(0)
    mask = torch.zeros(1, 1, 20, 20)
    mask[..., 3, :] = -np.inf
    mask[..., 4, 5:] = -np.inf
    query[..., 7, 0] = np.nan
    found = attend(query, key, value, mask)
    assert (found[..., 3, :] == 0).all()
    assert found[..., 7, :].isnan().all()
    others = [row for row in range(20) if row not in (3, 7)]
    wanted = expected(query, key, value, mask)
    torch.testing.assert_close(found[..., others, :], wanted[..., others, :], rtol=1e-5, atol=2e-6)


def test_empty_operands_give_empty_results() -> None:
    assert attend(*torch.zeros(3, 1, 2, 0, 8)).shape == (1, 2, 0, 8)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5, 17), (128, 384), (2, 9000)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_rows_are_normalised(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(2)
    source, (scale, added) = torch.randn(shape) * 3 + 7, torch.randn(2, shape[-1])
    call = normalisation_rows._Call(shape[-1:], 1e-5)
    found = call(source, scale, added if bias else None)
    wanted = functional.layer_norm(
        source.double(), shape[-1:], scale.double(), added.double() if bias else None, 1e-5
    )
    torch.testing.assert_close(found, wanted.float(), rtol=1e-4, atol=1e-5)


def test_rows_of_several_dimensions_are_normalised_and_wrong_ones_refused() -> None:
    source, scale = torch.randn(6, 4, 5).transpose(0, 1), torch.randn(6, 5)
    call = normalisation_rows._Call((6, 5), 1e-3)
    wanted = functional.layer_norm(source, (6, 5), scale, None, 1e-3)
    torch.testing.assert_close(call(source, scale), wanted, rtol=1e-4, atol=1e-5)
    assert call(source[:0], scale).shape == (0, 6, 5)
    with pytest.raises(ValueError, match="does not end in"):
        call(source[:, :5], scale)


def self_attention(heads: int, inputs: int, size: int) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """The kernel's call, its matrix and its bias."""
    torch.manual_seed(3)
    outputs = 3 * heads * size
    matrix, bias = torch.randn(inputs, outputs) / inputs**0.5, torch.randn(outputs)
    made = {"panels": panels(matrix), "bias": padded_bias(bias, outputs)}
    layer = CompiledLayer(made, inputs, outputs, Fused())
    return self_attention_blocked._Call(layer, inputs, heads, 0.3), matrix, bias


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (12, 128, 384, 32), (3, 37, 50, 11)], ids=str)
@pytest.mark.parametrize("mask", [None, "keys", "queries", "all", "one"])
def test_self_attention_is_as_exact_as_float32_can_be(
    sizes: tuple[int, ...], mask: str | None
) -> None:
    heads, length, inputs, size = sizes
    call, matrix, bias = self_attention(heads, inputs, size)
    for batch in (2, 1):  # a call of other shapes follows
        source = torch.randn(batch, length, inputs)
        shape = {"keys": (batch, 1, 1, length), "queries": (length, 1)}
        shape["all"] = (batch, heads, length, length)
        added = None if mask is None else torch.randn(shape.get(mask, (1,)))
        made = (source.double() @ matrix.double() + bias).view(batch, length, 3, heads, size)
        parts = made.permute(2, 0, 3, 1, 4).unbind(0)
        wanted = expected(*parts, added).transpose(1, 2).reshape(batch, length, heads * size)
        others = [None] * 6 if added is None else [None] * 6 + [added]
        torch.testing.assert_close(call(source, *others), wanted, rtol=1e-4, atol=1e-5)


def test_self_attention_of_nothing_is_empty_and_wrong_inputs_are_refused() -> None:
    call, _, _ = self_attention(2, 6, 4)
    assert call(torch.zeros(2, 0, 6)).shape == (2, 0, 8)
    with pytest.raises(ValueError, match="matrices of 6 rows cannot take"):
        call(torch.zeros(2, 3, 5))
    with pytest.raises(ValueError, match="does not fit 3 keys"):
        call(torch.zeros(2, 3, 6), *[None] * 6, torch.zeros(2, 1, 1, 4))
