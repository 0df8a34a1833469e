"""Pipeline entries of tiny networks, for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from support.models.segment_models import info, save

Shape = list["int | str"]


def network(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: Mapping[str, Shape],
    outputs: Mapping[str, Shape],
    weights: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """Float32 everywhere."""
    path.parent.mkdir(parents=True, exist_ok=True)
    ends = [[info(name, *shape) for name, shape in each.items()] for each in (inputs, outputs)]
    return save(path, nodes, *ends, weights or {})


def scaler(path: Path, factor: float, layers: int = 1, shape: Shape | None = None) -> Path:
    """y = x * factor, after ``layers`` that change nothing: -(-x), two at a time."""
    shape = shape or ["n", 4]
    nodes, value = [], "x"
    for index in range(layers):
        nodes.append(helper.make_node("Softplus", [value], [f"a{index}"]))
        nodes.append(helper.make_node("Sub", [f"a{index}", f"a{index}"], [f"b{index}"]))
        nodes.append(helper.make_node("Add", [value, f"b{index}"], [f"c{index}"]))
        value = f"c{index}"
    nodes.append(helper.make_node("Mul", [value, "factor"], ["y"]))
    weights = {"factor": np.array(factor, np.float32)}
    return network(path, nodes, {"x": shape}, {"y": shape}, weights)


def adder(path: Path) -> Path:
    """y = a + b."""
    shape: Shape = ["n", 4]
    node = helper.make_node("Add", ["a", "b"], ["y"])
    return network(path, [node], {"a": shape, "b": shape}, {"y": shape})


def confident(path: Path, factor: float = 100.0) -> Path:
    """y = x * factor, and p = x: sure where a row has a number of at least the threshold."""
    shape: Shape = ["n", 4]
    nodes = [
        helper.make_node("Mul", ["x", "factor"], ["y"]),
        helper.make_node("Identity", ["x"], ["p"]),
    ]
    weights = {"factor": np.array(factor, np.float32)}
    return network(path, nodes, {"x": shape}, {"y": shape, "p": shape}, weights)


def describe_fork(version: Path, **changes: Any) -> dict[str, Any]:
    """A description, with networks, of x -> first -> (left, right) -> join.

    ``first`` doubles, ``left`` triples, ``right`` negates; each has a variant ``small`` and a
    variant ``large`` of equal answers. So y = 2x * 3 - 2x = 4x.
    """
    for name, factor in (("first", 2.0), ("left", 3.0), ("right", -1.0)):
        scaler(version / f"{name}_small.onnx", factor)
        scaler(version / f"{name}_large.onnx", factor, layers=20)
    adder(version / "join.onnx")

    def node(name: str, source: str) -> dict[str, Any]:
        return {
            "inputs": {"x": source},
            "variants": {
                "small": {"file": f"{name}_small.onnx", "accuracy": 0.9},
                "large": {"file": f"{name}_large.onnx", "accuracy": 0.95},
            },
        }

    return {
        "objective_ms": 1000,
        "nodes": {
            "first": node("first", "request.x"),
            "left": node("left", "first.y"),
            "right": node("right", "first.y"),
            "join": {
                "inputs": {"a": "left.y", "b": "right.y"},
                "variants": {"only": {"file": "join.onnx", "accuracy": 1}},
            },
        },
        "outputs": {"y": "join.y"},
        **changes,
    }


def write(version: Path, description: Mapping[str, Any]) -> Path:
    version.mkdir(parents=True, exist_ok=True)
    path = version / "pipeline.json"
    path.write_text(json.dumps(description))
    return path


def slow_variant(path: Path) -> None:
    """y = 7x after some 100 ms of products."""
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["scale"], keepdims=0),
        helper.make_node("Mul", ["big", "scale"], ["p0"]),
    ]
    last = "p0"
    for step in range(1, 12):
        nodes.append(helper.make_node("MatMul", [last, "big"], [f"p{step}"]))
        last = f"p{step}"
    nodes += [
        helper.make_node("ReduceSum", [last], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["x"], ["of_x"], keepdims=0),
        helper.make_node("Mul", ["sum", "of_x"], ["mixed"]),
        helper.make_node("Mul", ["mixed", "zero"], ["nothing"]),
        helper.make_node("Mul", ["x", "seven"], ["more"]),
        helper.make_node("Add", ["more", "nothing"], ["y"]),
    ]
    weights = {
        "big": np.eye(1000, dtype=np.float32),
        "zero": np.array(0, np.float32),
        "seven": np.array(7, np.float32),
    }
    network(path, nodes, {"x": ["n", 4]}, {"y": ["n", 4]}, weights)
