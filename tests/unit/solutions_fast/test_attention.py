"""Attention against the matrix products and the softmax that it stands for."""

from __future__ import annotations

import numpy as np
import pytest

from brisk.graph.program import Node
from brisk.solutions.products.attention import FusedAttention
from support.models.solution_oracle import assert_agrees, layer_problem

GENERATOR = np.random.default_rng(5)


def normal(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype(np.float32)


def attention(mask: bool) -> tuple[Node, list[Node]]:
    inputs = ("q", "k", "v", "m")[: 3 + mask]
    main = Node("Attention", inputs, ("y",), {"scale": 0.3}, "brisk")
    scores = "masked" if mask else "scaled"
    constant = {"value": np.array(0.3, np.float32)}
    nodes = [
        Node("Constant", (), ("factor",), constant, version=13),
        Node("Transpose", ("k",), ("t",), {"perm": (0, 1, 3, 2)}, version=13),
        Node("MatMul", ("q", "t"), ("scores",), version=13),
        Node("Mul", ("scores", "factor"), ("scaled",), version=14),
        Node("Add", ("scaled", "m"), ("masked",), version=14),
        Node("Softmax", (scores,), ("weights",), {"axis": -1}, version=13),
        Node("MatMul", ("weights", "v"), ("y",), version=13),
    ]
    return main, nodes if mask else [node for node in nodes if "m" not in node.inputs]


MASKS = [None, (1, 1, 1, 7), (2, 1, 1, 7), (2, 1, 5, 7), (2, 3, 5, 7), (5, 7), (7,), (3, 1, 7), ()]


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_attention_equals_its_parts(mask, symbolic):
    main, nodes = attention(mask is not None)
    values = {"q": normal(2, 3, 5, 8), "k": normal(2, 3, 7, 8), "v": normal(2, 3, 7, 8)}
    if mask is not None:
        values["m"] = np.where(GENERATOR.random(mask) < 0.5, np.float32(-3.4e38), normal(*mask))
    hidden = {"q": (0, 2), "k": (0, 2)} if symbolic else None
    problem = layer_problem(main, values, nodes=nodes, symbolic=hidden)
    assert_agrees(FusedAttention(), problem, values)


@pytest.mark.parametrize("value_size", [4, 8])
def test_batch_and_heads_broadcast(value_size):
    main, nodes = attention(False)
    values = {
        "q": normal(2, 3, 5, 8), "k": normal(1, 3, 7, 8), "v": normal(1, 1, 7, value_size),
    }  # fmt: skip
    assert_agrees(FusedAttention(), layer_problem(main, values, nodes=nodes), values)
