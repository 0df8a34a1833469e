"""Matrix products against the reference solution."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brisk.graph.program import Node
from support.models.solution_oracle import assert_agrees, layer_problem, refusal

GENERATOR = np.random.default_rng(11)


def normal(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype(np.float32)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 9), inner=st.integers(1, 33), columns=st.integers(1, 17),
    trans_a=st.booleans(), trans_b=st.booleans(), alpha=st.sampled_from([1.0, 0.5]),
    beta=st.sampled_from([1.0, -2.0]), bias=st.sampled_from(["none", "()", "1", "n", "1n", "mn"]),
    constants=st.sampled_from([("w", "b"), ("w",), ("b",), ()]),
)  # fmt: skip
def test_gemm_equals_its_definition(
    rows, inner, columns, trans_a, trans_b, alpha, beta, bias, constants
):
    shapes = {"()": (), "1": (1,), "n": (columns,), "1n": (1, columns), "mn": (rows, columns)}
    values = {
        "x": normal(*((inner, rows) if trans_a else (rows, inner))),
        "w": normal(*((columns, inner) if trans_b else (inner, columns))),
    }
    names = ("x", "w")
    if bias != "none":
        names, values["b"] = ("x", "w", "b"), normal(*shapes[bias])
    attributes = {"transA": int(trans_a), "transB": int(trans_b), "alpha": alpha, "beta": beta}
    problem = layer_problem(
        Node("Gemm", names, ("y",), attributes, version=13), values,
        constants=constants,
    )  # fmt: skip
    assert_agrees(problem, values)


@pytest.mark.parametrize("constants", [(), ("w",), ("x",)], ids=str)
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 7, 3, 4), (4, 5)), ((4,), (4, 5)),
        ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (2, 4, 5)), ((2, 1, 3, 4), (6, 4, 5)),
        ((0, 4), (4, 5)), ((2, 0, 4), (4, 5)),
    ],
)  # fmt: skip
def test_matmul_broadcasts_as_numpy_does(left, right, constants):
    values = {"x": normal(*left), "w": normal(*right)}
    node = Node("MatMul", ("x", "w"), ("y",), version=13)
    problem = layer_problem(node, values, constants=constants)
    assert_agrees(problem, values)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32"])
def test_integer_products_are_exact_or_refused(dtype):
    values = {name: GENERATOR.integers(0, 2**31 - 1, (3, 3)).astype(dtype) for name in ("x", "w")}
    problem = layer_problem(Node("MatMul", ("x", "w"), ("y",), version=13), values)
    if dtype == "uint32":
        assert "dtype uint32" in (refusal(problem) or "")
    else:
        assert_agrees(problem, values, rtol=0, atol=0)
