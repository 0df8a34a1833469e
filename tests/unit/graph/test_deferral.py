"""Weights scaled where they are needed: never other numbers than those scaled at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from brisk.artefacts.arrays import array_bytes
from brisk.graph.deferral import ScaledWeights, settled
from brisk.solutions.values import from_numpy

WEIGHTS = np.random.default_rng(3).normal(size=(4, 3, 2, 2)).astype(np.float32)
FACTOR = np.array([1, -2, 0.5, 3], np.float32)
PRODUCT = WEIGHTS * FACTOR.reshape(-1, 1, 1, 1)


@pytest.fixture
def deferred() -> ScaledWeights:
    return ScaledWeights(WEIGHTS, FACTOR)


def test_type_and_size_are_known_without_computing(deferred: ScaledWeights) -> None:
    assert (deferred.shape, deferred.dtype) == (PRODUCT.shape, PRODUCT.dtype)
    assert (deferred.nbytes, deferred.ndim, deferred.size) == (PRODUCT.nbytes, 4, PRODUCT.size)
    assert not deferred.flags.writeable


@pytest.mark.parametrize(
    "read",
    [
        settled,
        lambda array: array + 0,
        lambda array: 0 + array,
        lambda array: array[:],
        lambda array: array.copy(),
        lambda array: array.astype(np.float32),
        lambda array: array.reshape(-1).reshape(PRODUCT.shape),
        lambda array: array.T.T,
        lambda array: np.concatenate([array[:1], array[1:]]),
        lambda array: np.stack([array, array])[1],
        lambda array: np.frombuffer(array.tobytes(), np.float32).reshape(PRODUCT.shape),
        lambda array: np.array(array.tolist(), np.float32),
        lambda array: array_bytes(array).view(np.float32).reshape(PRODUCT.shape),
        lambda array: from_numpy(array, torch.device("cpu")).numpy(),
        lambda array: settled([array])[0],
    ],
)
def test_whatever_reads_elements_reads_the_product(deferred: ScaledWeights, read) -> None:
    assert np.array_equal(read(deferred), PRODUCT)


def test_reductions_and_comparisons_are_those_of_the_product(deferred: ScaledWeights) -> None:
    assert deferred.sum() == PRODUCT.sum()
    assert np.max(deferred) == PRODUCT.max()
    assert (deferred == PRODUCT).all()


def test_memory_read_without_settling_is_not_a_number(deferred: ScaledWeights) -> None:
    assert np.isnan(np.asarray(deferred)).all()
