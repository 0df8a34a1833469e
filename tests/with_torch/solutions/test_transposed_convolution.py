"""Transposed convolutions against the reference solution."""

from __future__ import annotations

import numpy as np
import pytest

from brisk.graph.program import Node
from support.models.solution_oracle import assert_agrees, layer_problem, run_tuned

GENERATOR = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return GENERATOR.standard_normal(shape).astype(np.float32)


TRANSPOSED = [
    pytest.param((2, 4, 5, 6), (4, 3, 3, 3), {}, id="plain"),
    pytest.param((1, 4, 5, 6), (4, 3, 3, 3), {"strides": (2, 3)}, id="strides"),
    pytest.param((1, 4, 5, 6), (4, 3, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}, id="pads"),
    pytest.param((1, 4, 5, 6), (4, 3, 3, 3), {"pads": (0, 1, 2, 0)}, id="asymmetric"),
    pytest.param(
        (1, 4, 5, 6), (4, 3, 3, 3), {"strides": (2, 2), "output_padding": (1, 1)}, id="extra"
    ),
    pytest.param((1, 4, 5, 6), (4, 3, 3, 3), {"dilations": (2, 2)}, id="dilations"),
    pytest.param((1, 4, 5), (4, 3, 3), {"strides": (2,), "pads": (1, 0)}, id="line"),
    pytest.param((1, 4, 3, 4, 3), (4, 3, 2, 2, 2), {"strides": (2, 1, 2)}, id="volume"),
    pytest.param(
        (1, 4, 5, 6), (4, 3, 3, 3), {"auto_pad": "SAME_UPPER", "strides": (2, 2)}, id="same upper"
    ),
    pytest.param(
        (1, 4, 5, 6), (4, 3, 3, 3), {"auto_pad": "SAME_LOWER", "strides": (2, 2)}, id="same lower"
    ),
    pytest.param(
        (1, 4, 5, 6), (4, 3, 4, 4),
        {"auto_pad": "SAME_UPPER", "strides": (2, 2), "output_shape": (9, 11)}, id="output shape",
    ),
]  # fmt: skip


@pytest.mark.parametrize("constants", [("w", "b"), ()], ids=["constant", "variable"])
@pytest.mark.parametrize(("source", "weight", "attributes"), TRANSPOSED)
def test_a_transposed_convolution_equals_its_definition(source, weight, attributes, constants):
    values = {"x": normal(*source), "w": normal(*weight), "b": normal(3)}
    node = Node("ConvTranspose", ("x", "w", "b"), ("y",), attributes, version=22)
    problem = layer_problem(node, values, constants=constants)
    assert_agrees(problem, values)


@pytest.mark.parametrize("bias", [("b",), ()], ids=["bias", "no bias"])
@pytest.mark.parametrize(
    ("source", "kernel"),
    [((2, 257, 5, 6), (2, 2)), ((1, 256, 3, 1), (3, 2)), ((3, 300, 2, 7), (1, 1))],
)
def test_a_transposed_convolution_without_overlap(source, kernel, bias):
    values = {"x": normal(*source), "w": normal(source[1], 5, *kernel), "b": normal(5)}
    node = Node(
        "ConvTranspose", ("x", "w", *bias), ("y",), {"strides": kernel, "pads": (0, 0, 0, 0)},
        version=22,
    )  # fmt: skip
    problem = layer_problem(node, values, constants=("w", *bias))
    assert_agrees(problem, values)
    nothing = values | {"x": normal(0, *source[1:])}
    (found,) = run_tuned(problem, nothing)
    assert found.shape == (0, 5, source[2] * kernel[0], source[3] * kernel[1])


def test_an_output_shape_larger_than_the_product_is_filled_at_the_end():
    values = {"x": normal(1, 1, 3, 3), "w": normal(1, 2, 3, 3)}
    node = Node(
        "ConvTranspose", ("x", "w"), ("y",), {"strides": (3, 2), "output_shape": (10, 8)},
        version=22,
    )  # fmt: skip
    problem = layer_problem(node, values, constants=("w",))
    assert_agrees(problem, values)
