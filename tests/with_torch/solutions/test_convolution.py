"""Convolution solutions against the reference solution."""

from __future__ import annotations

import numpy as np
import pytest

from brisk.graph.program import Node
from support.models.solution_oracle import assert_agrees, layer_problem

GENERATOR = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype(np.float32)


def conv(*inputs: str, **attributes: object) -> Node:
    return Node("Conv", inputs or ("x", "w", "b"), ("y",), attributes, version=22)  # type: ignore[arg-type]


GEOMETRIES = [
    pytest.param((2, 8, 9, 11), (6, 8, 3, 3), {"pads": (1, 1, 1, 1)}, id="same"),
    pytest.param((1, 8, 9, 11), (6, 8, 3, 3), {"strides": (2, 1)}, id="strides"),
    pytest.param((1, 8, 9, 11), (6, 8, 3, 3), {"dilations": (2, 3)}, id="dilations"),
    pytest.param((1, 8, 9, 11), (6, 8, 1, 1), {}, id="pointwise"),
    pytest.param((1, 8, 9, 11), (6, 4, 3, 3), {"group": 2}, id="groups"),
    pytest.param((1, 8, 9, 11), (8, 1, 3, 3), {"group": 8, "pads": (1, 1, 1, 1)}, id="depthwise"),
    pytest.param((1, 8, 9, 11), (6, 8, 3, 2), {"pads": (0, 1, 2, 0)}, id="asymmetric"),
    pytest.param((1, 8, 9, 11), (6, 8, 3, 4), {"auto_pad": "SAME_UPPER"}, id="same upper"),
    pytest.param(
        (1, 8, 9, 12), (6, 8, 2, 4), {"auto_pad": "SAME_LOWER", "strides": (2, 3)}, id="same lower"
    ),
    pytest.param((1, 8, 9, 11), (6, 8, 3, 3), {"auto_pad": "VALID"}, id="valid"),
    pytest.param((2, 8, 19), (6, 8, 3), {"pads": (1, 1), "strides": (2,)}, id="one dimension"),
    pytest.param((2, 8, 19), (6, 8, 4), {"auto_pad": "SAME_UPPER"}, id="one dimension, same"),
    pytest.param((2, 3, 5, 6, 7), (4, 3, 3, 2, 3), {"pads": (1, 0, 1, 1, 0, 1)}, id="volume"),
    pytest.param((1, 1, 8, 8), (16, 1, 3, 3), {"pads": (1, 1, 1, 1)}, id="one channel"),
]


@pytest.mark.parametrize("with_bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize(("source", "weight", "attributes"), GEOMETRIES)
def test_a_convolution_equals_its_definition(with_bias, source, weight, attributes):
    values = {"x": normal(*source), "w": normal(*weight), "b": normal(weight[0])}
    node = conv(*("x", "w", "b")[: 2 + with_bias], **attributes)
    problem = layer_problem(node, values, constants=("w", "b"))
    assert_agrees(problem, values)


@pytest.mark.parametrize("batch", [1, 3])
def test_sizes_may_change_from_call_to_call(batch):
    first = {"x": normal(1, 4, 16, 16), "w": normal(5, 4, 3, 3), "b": normal(5)}
    problem = layer_problem(
        conv(pads=(1, 1, 1, 1), strides=(2, 2)), first,
        constants=("w", "b"), symbolic={"x": (0, 2, 3)},
    )  # fmt: skip
    assert_agrees(problem, first | {"x": normal(batch, 4, 33, 21)})


@pytest.mark.parametrize("constants", [(), ("b",), ("w",), ("x",)], ids=str)
def test_weights_may_come_with_the_call(constants):
    values = {"x": normal(1, 4, 6, 7), "w": normal(5, 4, 3, 3), "b": normal(5)}
    problem = layer_problem(
        conv(auto_pad="SAME_LOWER", strides=(2, 2)), values,
        constants=constants, symbolic={"x": (2, 3)},
    )  # fmt: skip
    assert_agrees(problem, values)
