"""Attention of a sequence to itself against the products and the softmax that it stands for."""

from __future__ import annotations

import numpy as np
import pytest

from brisk.graph.program import Node
from brisk.solutions.base import Problem
from brisk.solutions.products.self_attention import SelfAttention
from support.models.solution_oracle import assert_agrees, layer_problem

GENERATOR = np.random.default_rng(8)

MASKS = [None, (2, 1, 1, 5), (1, 1, 5, 5), (2, 3, 5, 5), (5,), ()]


def normal(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype(np.float32)


def heads_of(name: str, bias: bool) -> list[Node]:
    """The heads of query, key or value, [batch, heads, length, size]."""
    product = [Node("MatMul", ("x", f"{name}w"), (f"{name}m",), version=13)]
    if bias:
        product.append(Node("Add", (f"{name}m", f"{name}b"), (f"{name}l",), version=14))
    return [
        *product,
        Node("Reshape", (product[-1].outputs[0], "split"), (f"{name}s",), version=14),
        Node("Transpose", (f"{name}s",), (name,), {"perm": (0, 2, 1, 3)}, version=13),
    ]


def problem_and_values(
    mask: tuple[int, ...] | None, symbolic: bool = False, bias: str = "qkv"
) -> tuple[Problem, dict[str, np.ndarray]]:
    """Three heads of four numbers, of five places of seven numbers."""
    values = {"x": normal(2, 5, 7)} | {f"{name}w": normal(7, 12) for name in "qkv"}
    values |= {f"{name}b": normal(12) for name in bias}
    weights = [name for part in "qkv" for name in (f"{part}w", f"{part}b" if part in bias else "")]
    if mask is not None:
        values["m"] = np.where(GENERATOR.random(mask) < 0.3, np.float32(-3.4e38), normal(*mask))
    inputs = ("x", *weights, *(("m",) if mask is not None else ()))
    main = Node("SelfAttention", inputs, ("y",), {"scale": 0.3, "heads": 3}, "brisk")
    constants = {
        "split": np.array([0, 0, 3, 4]),
        "join": np.array([0, 0, 12]),
        "c": np.array(0.3, np.float32),
    }
    nodes = [
        Node("Constant", (), (name,), {"value": array}, version=13)
        for name, array in constants.items()
    ]
    nodes += [node for name in "qkv" for node in heads_of(name, name in bias)]
    nodes += [
        Node("Transpose", ("k",), ("t",), {"perm": (0, 1, 3, 2)}, version=13),
        Node("MatMul", ("q", "t"), ("raw",), version=13),
        Node("Mul", ("raw", "c"), ("scaled",), version=14),
    ]
    if mask is not None:
        nodes.append(Node("Add", ("scaled", "m"), ("masked",), version=14))
    nodes += [
        Node("Softmax", (nodes[-1].outputs[0],), ("weights",), {"axis": -1}, version=13),
        Node("MatMul", ("weights", "v"), ("result",), version=13),
        Node("Transpose", ("result",), ("turned",), {"perm": (0, 2, 1, 3)}, version=13),
        Node("Reshape", ("turned", "join"), ("y",), version=14),
    ]
    known = [name for name in weights if name]
    hidden = {"x": (0, 1)} if symbolic else None
    return layer_problem(main, values, constants=known, nodes=nodes, symbolic=hidden), values


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_self_attention_equals_its_parts(mask: tuple[int, ...] | None, symbolic: bool) -> None:
    problem, values = problem_and_values(mask, symbolic)
    assert_agrees(SelfAttention(), problem, values)


@pytest.mark.parametrize("bias", ["", "q", "kv"])
def test_a_bias_may_be_left_out(bias: str) -> None:
    problem, values = problem_and_values(None, bias=bias)
    assert_agrees(SelfAttention(), problem, values)
