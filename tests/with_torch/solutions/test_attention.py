"""Attention against the matrix products and the softmax that it stands for."""

from __future__ import annotations

import numpy as np
import pytest

from brisk.graph.program import ATTENTION, Node
from support.models.solution_oracle import assert_agrees, layer_problem

GENERATOR = np.random.default_rng(5)


def normal(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype(np.float32)


def attention(*inputs: str, zeroes: bool = False) -> Node:
    domain, operator = ATTENTION
    attributes = {"scale": 0.3, "zero_masked_rows": int(zeroes)}
    return Node(operator, inputs, ("y",), attributes, domain)


def masked(*shape: int, share: float = 0.5) -> np.ndarray:
    return np.asarray(
        np.where(GENERATOR.random(shape) < share, np.float32(-3.4e38), normal(*shape))
    )


MASKS = [None, (1, 1, 1, 7), (2, 1, 1, 7), (2, 1, 5, 7), (2, 3, 5, 7), (5, 7), (7,), (3, 1, 7), ()]


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_attention_equals_its_parts(mask, symbolic):
    values = {"q": normal(2, 3, 5, 8), "k": normal(2, 3, 8, 7), "v": normal(2, 3, 7, 8)}
    if mask is not None:
        values["m"] = masked(*mask)
    hidden = {"q": (0, 2), "k": (0, 3)} if symbolic else None
    problem = layer_problem(attention(*values), values, symbolic=hidden)
    assert_agrees(problem, values)


@pytest.mark.parametrize("value_size", [4, 8])
def test_batch_and_heads_broadcast(value_size):
    values = {
        "q": normal(2, 3, 5, 8), "k": normal(1, 3, 8, 7), "v": normal(1, 1, 7, value_size),
    }  # fmt: skip
    assert_agrees(layer_problem(attention(*values), values), values)


@pytest.mark.parametrize("mask", [(4, 1, 1, 7), (1, 1, 5, 7), (4, 3, 5, 7)], ids=str)
def test_a_mask_may_widen_the_scores(mask):
    values = {"q": normal(1, 3, 1, 8), "k": normal(1, 3, 8, 7), "v": normal(1, 3, 7, 8)}
    values["m"] = normal(*mask)
    assert_agrees(layer_problem(attention(*values), values), values)


@pytest.mark.parametrize("heads", [1, 3])
def test_rows_that_are_masked_throughout_are_zero_where_the_model_guards_them(heads):
    values = {"q": normal(2, 3, 5, 8), "k": normal(2, heads, 8, 7), "v": normal(2, heads, 7, 8)}
    values["m"] = np.zeros((2, 1, 5, 7), np.float32)
    values["m"][1, 0, 2] = -np.inf
    node = attention(*values, zeroes=True)
    assert_agrees(layer_problem(node, values), values)
