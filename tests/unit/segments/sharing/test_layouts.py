"""Recipes say how ONNX Runtime lays out weights, on whatever processor."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from brisk.segments.prepared import recipes


@pytest.mark.parametrize("block", [8, 16])
@pytest.mark.parametrize("is_whole", [0, 1])
@pytest.mark.parametrize("shape", [(24, 24, 1, 1), (20, 1, 3, 3), (8, 3, 1, 1), (33, 40, 3, 3)])
def test_blocks_are_told_apart_whatever_processor_made_them(
    block: int, is_whole: int, shape: tuple[int, ...]
) -> None:
    """Filters of 24 channels fill three blocks of 8, or two of 16 with zeros behind them: a
    recipe of the smaller ones would make too few."""
    weight = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    made = np.ascontiguousarray(recipes._laid_out(weight, (block, is_whole)))
    parts = made.shape
    laid = (parts[0] * block, parts[1] * (block if is_whole else 1), *shape[2:])
    book = recipes._Book(onnx.GraphProto(), {"w": weight})
    found = book.find(made.reshape(-1).view(np.uint8), onnx.TensorProto.FLOAT, laid)
    assert found is not None
    np.testing.assert_array_equal(
        recipes.follow(found, {"w": weight}), made.reshape(-1).view(np.uint8)
    )
