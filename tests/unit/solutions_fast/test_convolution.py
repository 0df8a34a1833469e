"""Convolution solutions against the reference solution."""

from __future__ import annotations

import numpy as np
import pytest

from brisk.graph.program import Epilogue, Node
from brisk.solutions.images.convolution import TorchConvolution
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
    assert_agrees(TorchConvolution(), problem, values)


STEPS = [
    Epilogue("Relu"),
    Epilogue("Clip", {"min": 0.0, "max": 6.0}),
    Epilogue("Clip", {"min": -0.5}),
    Epilogue("Clip", {"max": 0.5}),
    Epilogue("Clip", {"min": 1.0, "max": -1.0}),
    Epilogue("Sigmoid"),
    Epilogue("Tanh"),
    Epilogue("HardSwish"),
    Epilogue("HardSigmoid"),
    Epilogue("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),
    Epilogue("LeakyRelu", {"alpha": 0.1}),
    Epilogue("Gelu"),
    Epilogue("Gelu", {"approximate": "tanh"}),
    Epilogue("Silu"),
    Epilogue("Elu", {"alpha": 0.7}),
    Epilogue("Selu"),
    Epilogue("Mish"),
    Epilogue("Abs"),
    Epilogue("Exp"),
]


@pytest.mark.parametrize("source", [(2, 4, 6, 6), (2, 4, 9)], ids=["plane", "line"])
@pytest.mark.parametrize("step", STEPS, ids=str)
def test_an_activation_is_applied_behind_the_convolution(step, source):
    rank = len(source) - 2
    values = {"x": normal(*source), "w": normal(5, 4, *[3] * rank), "b": normal(5)}
    problem = layer_problem(conv(), values, constants=("w", "b"), epilogue=[step])
    assert_agrees(TorchConvolution(), problem, values)


CHAINS = [
    [Epilogue("Add", operand="r"), Epilogue("Relu")],
    [Epilogue("Add", operand="r", operand_first=True), Epilogue("Relu"), Epilogue("Sigmoid")],
    [Epilogue("Add", operand="r"), Epilogue("Sigmoid")],
    [Epilogue("Mul", operand="r"), Epilogue("Relu")],
    [Epilogue("Sub", operand="r", operand_first=True), Epilogue("Relu")],
    [Epilogue("Relu"), Epilogue("Add", operand="r"), Epilogue("Mul", operand="s")],
    [Epilogue("Add", operand="r"), Epilogue("Relu"), Epilogue("Mul", operand="s")],
]


@pytest.mark.parametrize("constants", [(), ("r",), ("s",), ("r", "s")], ids=str)
@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("shape", ["same", "channel", "larger", "scalar", "line"])
@pytest.mark.parametrize("steps", CHAINS, ids=lambda steps: "-".join(s.operator for s in steps))
def test_a_second_operand_joins_by_the_broadcasting_rules(steps, shape, symbolic, constants):
    line = shape == "line"
    rank = 1 if line else 2
    values = {"x": normal(1, 4, *[6] * rank), "w": normal(5, 4, *[3] * rank), "b": normal(5)}
    result = (1, 5, *[6] * rank)
    operand = {
        "same": result, "line": result, "scalar": (), "channel": (1, 5, 1, 1),
        "larger": (3, *result[1:]),
    }[shape]  # fmt: skip
    values["r"], values["s"] = normal(*operand), normal(*operand)
    hidden = {"x": (0, 2, 3), "r": (0, 2, 3), "s": (0, 2, 3)} if symbolic and not line else None
    problem = layer_problem(
        conv(pads=(1,) * (2 * rank)), values,
        constants=("w", "b", *constants), epilogue=steps, symbolic=hidden,
    )  # fmt: skip
    assert_agrees(TorchConvolution(), problem, values)


@pytest.mark.parametrize("batch", [1, 3])
def test_sizes_may_change_from_call_to_call(batch):
    first = {"x": normal(1, 4, 16, 16), "w": normal(5, 4, 3, 3), "b": normal(5)}
    problem = layer_problem(
        conv(pads=(1, 1, 1, 1), strides=(2, 2)), first,
        constants=("w", "b"), symbolic={"x": (0, 2, 3)},
    )  # fmt: skip
    assert_agrees(TorchConvolution(), problem, first | {"x": normal(batch, 4, 33, 21)})


@pytest.mark.parametrize("constants", [(), ("b",), ("w",), ("x",)], ids=str)
def test_weights_may_come_with_the_call(constants):
    values = {"x": normal(1, 4, 6, 7), "w": normal(5, 4, 3, 3), "b": normal(5), "r": normal(1)}
    steps = [Epilogue("Relu"), Epilogue("Add", operand="r")]
    for epilogue in ([], steps):
        problem = layer_problem(
            conv(auto_pad="SAME_LOWER", strides=(2, 2)), values,
            constants=constants, epilogue=epilogue, symbolic={"x": (2, 3)},
        )  # fmt: skip
        assert_agrees(TorchConvolution(), problem, values)
