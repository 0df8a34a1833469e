"""A model that computes something of its weights alone starts no other model of its skeleton.

ONNX Runtime computes it once, when it optimises: in the form of a model of positive weights it may
not show, and would be wrong for the next model.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from brisk.errors import ArtefactError
from brisk.runtime.sessions.segment_session import load_segment_session
from brisk.segments.frame import run_serially
from brisk.segments.prepared import recipes
from brisk.segments.prepared.preparation import prepare
from brisk.segments.prepared.siblings import skeleton_of
from support.models.segment_models import info, whole

pytestmark = pytest.mark.usefixtures("private_cache", "shares_whatever_it_takes")

WIDTH = 64
X = np.random.default_rng(3).standard_normal((WIDTH, WIDTH)).astype(np.float32)
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]

Nodes = list[onnx.NodeProto]


def weights(seed: int, *, is_positive: bool = False) -> np.ndarray:
    """Values that a slight change leaves at their sign."""
    random = np.random.default_rng(seed).standard_normal((WIDTH, WIDTH)).astype(np.float32)
    random += np.copysign(np.float32(0.1), random)
    return np.abs(random) if is_positive else random


def signed(x: str, w: str, y: str) -> Nodes:
    """y = (x * sign(w)) @ w"""
    return [
        helper.make_node("Sign", [w], ["sign"]),
        helper.make_node("Mul", [x, "sign"], ["signed"]),
        helper.make_node("MatMul", ["signed", w], [y]),
    ]


def by_way_of(operator: str, x: str, w: str, y: str) -> Nodes:
    """y = x @ operator(w), which is w itself where that is positive."""
    return [
        helper.make_node(operator, [w], ["same"]),
        helper.make_node("MatMul", [x, "same"], [y]),
    ]


def model(nodes: Nodes, functions: list[onnx.FunctionProto], w: np.ndarray) -> onnx.ModelProto:
    values = {"w": w, "true": np.array(True), "tiny": np.array(1e-9, np.float32)}
    read = {name for node in nodes for name in node.input} | {"w"}
    graph = helper.make_graph(
        nodes,
        "computes",
        [info("x", WIDTH, WIDTH)],
        [info("y", WIDTH, WIDTH)],
        [numpy_helper.from_array(value, name) for name, value in values.items() if name in read],
    )
    return helper.make_model(graph, opset_imports=OPSETS, functions=functions, ir_version=8)


def in_a_function(body: Nodes) -> Callable[[np.ndarray], onnx.ModelProto]:
    function = helper.make_function("own", "F", ["a", "b"], ["r"], body, OPSETS[:1])
    return lambda w: model([helper.make_node("F", ["x", "w"], ["y"], domain="own")], [function], w)


def in_a_body(w: np.ndarray) -> onnx.ModelProto:
    """The branch is known, so ONNX Runtime moves its nodes into the graph."""
    output = [info("r", WIDTH, WIDTH)]
    negation = [helper.make_node("Neg", ["x"], ["r"])]
    branches = {
        "then_branch": helper.make_graph(signed("x", "w", "r"), "then", [], output),
        "else_branch": helper.make_graph(negation, "else", [], output),
    }
    return model([helper.make_node("If", ["true"], ["y"], **branches)], [], w)


def with_a_size(w: np.ndarray) -> onnx.ModelProto:
    """The size is known, and so is which weights are larger than a tiny part of it."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Cast", ["shape"], ["sizes"], to=onnx.TensorProto.FLOAT),
        helper.make_node("ReduceMax", ["sizes"], ["size"], keepdims=0),
        helper.make_node("Mul", ["size", "tiny"], ["bound"]),
        helper.make_node("Greater", ["w", "bound"], ["is_large"]),
        helper.make_node("Cast", ["is_large"], ["mask"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "mask"], ["masked"]),
        helper.make_node("MatMul", ["masked", "w"], ["y"]),
    ]
    return model(nodes, [], w)


def in_no_order(w: np.ndarray) -> onnx.ModelProto:
    """ONNX Runtime sorts nodes."""
    nodes = signed("x", "again", "y")
    return model([*nodes, helper.make_node("Identity", ["w"], ["again"])], [], w)


MODELS = {
    "in the graph": lambda w: model(signed("x", "w", "y"), [], w),
    "sign in a function": in_a_function(signed("a", "b", "r")),
    "absolute in a function": in_a_function(by_way_of("Abs", "a", "b", "r")),
    "positive in a function": in_a_function(by_way_of("Relu", "a", "b", "r")),
    "in a body": in_a_body,
    "with a size": with_a_size,
    "in no order": in_no_order,
}


def refuse(error: ArtefactError) -> None:
    raise AssertionError(error)


@pytest.mark.parametrize("made", MODELS.values(), ids=MODELS)
def test_what_is_computed_of_weights_is_the_next_model_s_own(
    made: Callable[[np.ndarray], onnx.ModelProto], tmp_path: Path
) -> None:
    first, path = tmp_path / "first.onnx", tmp_path / "next.onnx"
    onnx.save(made(weights(1, is_positive=True)), first)
    onnx.save(made(weights(2)), path)
    assert skeleton_of(first) == skeleton_of(path) != ""
    prepare(first, 1)
    session = load_segment_session(path, 1, refuse, None)
    assert session.table.wait(60)
    found = run_serially(session.starting.program, {"x": X})["y"]
    np.testing.assert_allclose(found, whole(path, {"x": X})["y"], rtol=1e-3, atol=1e-3)
    assert session.origin == "model"


@pytest.mark.parametrize("operator", ["Sign", "Abs", "Relu"])
def test_random_weights_show_what_is_computed_of_weights(
    operator: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if it had been overlooked in the graph."""
    nodes = signed("x", "w", "y") if operator == "Sign" else by_way_of(operator, "x", "w", "y")
    monkeypatch.setattr(recipes, "_are_computed_with", lambda graph, floats: False)
    first, path = tmp_path / "first.onnx", tmp_path / "next.onnx"
    onnx.save(model(nodes, [], weights(1, is_positive=True)), first)
    onnx.save(model(nodes, [], weights(2)), path)
    prepare(first, 1)
    assert load_segment_session(path, 1, refuse, None).origin == "model"


def test_a_weight_that_sizes_only_move_starts_the_next_model(tmp_path: Path) -> None:
    """The rows of a table of positions, as many as x has."""
    nodes = [
        helper.make_node("Shape", ["x"], ["rows"], start=0, end=1),
        helper.make_node("Slice", ["w", "zero", "rows"], ["positions"]),
        helper.make_node("Add", ["x", "positions"], ["y"]),
    ]
    paths = [tmp_path / "first.onnx", tmp_path / "next.onnx"]
    for seed, path in enumerate(paths):
        made = model(nodes, [], weights(seed))
        made.graph.initializer.append(numpy_helper.from_array(np.array([0]), "zero"))
        for value in (*made.graph.input, *made.graph.output):
            value.type.tensor_type.shape.dim[0].dim_param = "n"
        onnx.save(made, path)
    prepare(paths[0], 1)
    session = load_segment_session(paths[1], 1, refuse, None)
    assert session.table.wait(60)
    assert session.origin == "sibling"
    found = run_serially(session.starting.program, {"x": X[:5]})["y"]
    np.testing.assert_array_equal(found, X[:5] + weights(1)[:5])
