"""Quantised operators against the reference solution, to the last bit where they are integers."""

from __future__ import annotations

import numpy as np
import pytest

from brisk.graph.program import Node
from support.models.solution_oracle import assert_agrees, layer_problem

GENERATOR = np.random.default_rng(17)
LIMITS = {"int8": (-128, 128), "uint8": (0, 256)}


def in_bytes(dtype: str, *shape: int) -> np.ndarray:
    return GENERATOR.integers(*LIMITS[dtype], shape).astype(dtype)


def normal(*shape: int) -> np.ndarray:
    return np.asarray(GENERATOR.standard_normal(shape), np.float32)


@pytest.mark.parametrize("left", ["int8", "uint8"])
@pytest.mark.parametrize("right", ["int8", "uint8"])
@pytest.mark.parametrize("points", [(), ("a",), ("a", "b")], ids=str)
@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("source", [(5, 40), (2, 3, 40), (1, 40)])
def test_an_integer_product_is_exact(left, right, points, per_column, source):
    values = {"x": in_bytes(left, *source), "w": in_bytes(right, 40, 9)}
    values["a"] = in_bytes(left)
    values["b"] = in_bytes(right, *((9,) if per_column else ()))
    node = Node("MatMulInteger", ("x", "w", *points), ("y",), version=10)
    for constants in (("w", "b"), ("w", "a", "b")):
        problem = layer_problem(node, values, constants=constants)
        assert_agrees(problem, values, rtol=0, atol=0)


@pytest.mark.parametrize("left", ["int8", "uint8"])
@pytest.mark.parametrize("right", ["int8", "uint8"])
@pytest.mark.parametrize("result", ["int8", "uint8"])
@pytest.mark.parametrize("per_column", [False, True])
def test_a_requantised_product_rounds_and_saturates_exactly(left, right, result, per_column):
    columns = (9,) if per_column else ()
    values = {
        "x": in_bytes(left, 4, 40), "xs": np.array(0.03, np.float32), "xz": in_bytes(left),
        "w": in_bytes(right, 40, 9), "ws": np.asarray(np.abs(normal(*columns)) * np.float32(0.01)),
        "wz": in_bytes(right, *columns), "ys": np.array(0.4, np.float32),
        "yz": in_bytes(result),
    }  # fmt: skip
    values = {name: np.asarray(value) for name, value in values.items()}
    names = ("x", "xs", "xz", "w", "ws", "wz", "ys", "yz")
    node = Node("QLinearMatMul", names, ("y",), version=21)
    problem = layer_problem(node, values, constants=names[1:])
    assert_agrees(problem, values, rtol=0, atol=0)


@pytest.mark.parametrize("low", [-3.0, 0.5, -9.0])
def test_dynamic_quantisation_equals_its_definition(low):
    values = {"x": normal(7, 33) + np.float32(low)}
    node = Node("DynamicQuantizeLinear", ("x",), ("y", "scale", "point"), version=11)
    problem = layer_problem(node, values)
    assert_agrees(problem, values, rtol=0, atol=0)
    zero = {"x": np.zeros((2, 3), np.float32)}
    assert_agrees(layer_problem(node, zero), zero, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("with_point", [False, True])
def test_scaling_to_bytes_and_back_is_exact(dtype, axis, with_point):
    shape = () if axis is None else ((4, 6, 5)[axis],)
    scale = np.asarray(np.abs(normal(*shape)) * np.float32(0.1) + np.float32(0.01))
    point = in_bytes(dtype, *shape)
    if not with_point:
        point = np.zeros_like(point)
    values = {"x": normal(4, 6, 5) * 5, "s": scale, "z": point, "q": in_bytes(dtype, 4, 6, 5)}
    values["x"][0, 0, :3] = [0.5 * scale.flat[0], 1e6, -1e6]
    attributes = {} if axis is None else {"axis": axis}
    names = ("s", "z") if with_point or dtype == "int8" else ("s",)
    quantise = Node("QuantizeLinear", ("x", *names), ("y",), attributes, version=21)
    dequantise = Node("DequantizeLinear", ("q", *names), ("y",), attributes, version=21)
    for node in (quantise, dequantise):
        for constants in ((), ("s", "z")):
            problem = layer_problem(node, values, constants=constants)
            assert_agrees(problem, values, rtol=0, atol=0)


CONVOLUTIONS = [
    ((1, 3, 6, 7), (4, 3, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((2, 4, 6, 7), (4, 2, 3, 2), {"group": 2, "strides": (2, 1)}),
    ((1, 3, 9), (4, 3, 3), {"pads": (0, 2)}),
    ((1, 200, 5, 5), (4, 200, 3, 3), {"auto_pad": "SAME_UPPER", "strides": (2, 2)}),
]


@pytest.mark.parametrize("left", ["int8", "uint8"])
@pytest.mark.parametrize("right", ["int8", "uint8"])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("source", "weight", "attributes"), CONVOLUTIONS)
def test_a_requantised_convolution_is_exact(
    left, right, per_channel, bias, source, weight, attributes
):
    # onnx.reference gives scales per channel the shape for planes, whatever the rank
    channels = weight[:1] if per_channel and len(source) == 4 else ()
    values = {
        "x": in_bytes(left, *source), "xs": np.array(0.03, np.float32), "xz": in_bytes(left),
        "w": in_bytes(right, *weight),
        "ws": np.asarray(np.abs(normal(*channels)) * np.float32(0.01)),
        "wz": in_bytes(right, *channels), "ys": np.array(0.4, np.float32),
        "yz": in_bytes(left), "b": GENERATOR.integers(-999, 999, weight[0]).astype(np.int32),
    }  # fmt: skip
    names = ("x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b")[: 8 + bias]
    node = Node("QLinearConv", names, ("y",), attributes, version=10)
    problem = layer_problem(node, values, constants=names[1:])
    assert_agrees(problem, values, rtol=0, atol=0)


@pytest.mark.parametrize("points", [(), ("xz",), ("xz", "wz")], ids=str)
@pytest.mark.parametrize(("source", "weight", "attributes"), CONVOLUTIONS[:1] + CONVOLUTIONS[3:])
def test_an_integer_convolution_is_exact(points, source, weight, attributes):
    values = {
        "x": in_bytes("uint8", *source), "w": in_bytes("uint8", *weight),
        "xz": in_bytes("uint8"), "wz": in_bytes("uint8"),
    }  # fmt: skip
    node = Node("ConvInteger", ("x", "w", *points), ("y",), attributes, version=10)
    problem = layer_problem(node, values, constants=("w", "xz", "wz"))
    assert_agrees(problem, values, rtol=0, atol=0)
