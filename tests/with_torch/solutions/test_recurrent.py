"""Recurrent layers against the reference solution in all directions."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from brisk.graph.program import Node
from support.models.solution_oracle import assert_agrees, layer_problem, refusal, run_tuned

GENERATOR = np.random.default_rng(23)
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
LENGTH, BATCH, INPUT, HIDDEN = 6, 2, 5, 4


def normal(*shape: int) -> np.ndarray:
    return np.asarray(GENERATOR.standard_normal(shape), np.float32)


def recurrent_values(operator: str, directions: int) -> dict[str, np.ndarray]:
    gates = GATES[operator]
    return {
        "x": normal(LENGTH, BATCH, INPUT),
        "w": normal(directions, gates * HIDDEN, INPUT),
        "r": normal(directions, gates * HIDDEN, HIDDEN),
        "b": normal(directions, 2 * gates * HIDDEN),
        "h": normal(directions, BATCH, HIDDEN),
        "c": normal(directions, BATCH, HIDDEN),
        "n": np.full(BATCH, LENGTH, np.int32),
    }


def recurrent_node(operator: str, inputs: tuple[str, ...], **attributes: object) -> Node:
    attributes["hidden_size"] = HIDDEN
    if operator == "GRU":
        attributes.setdefault("linear_before_reset", 1)
    outputs = ("y", "yh", "yc")[: 3 if operator == "LSTM" else 2]
    return Node(operator, inputs, outputs, attributes, version=22)  # type: ignore[arg-type]


@pytest.mark.parametrize("operator", GATES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_a_layer_equals_its_definition(operator, bias, start, lengths, direction):
    values = recurrent_values(operator, 2 if direction == "bidirectional" else 1)
    inputs = ("x", "w", "r", "b" if bias else "", "n" if lengths else "", "h" if start else "")
    if operator == "LSTM":
        inputs += ("c" if start else "",)
    while not inputs[-1]:
        inputs = inputs[:-1]
    for constants in (("w", "r", "b", "n"), ("w", "r", "b", "n", "h", "c")):
        problem = layer_problem(
            recurrent_node(operator, inputs, direction=direction), values, constants=constants
        )
        assert_agrees(problem, values)


@pytest.mark.parametrize("attributes", [{"layout": 1}, {"clip": 1.0}, {"linear_before_reset": 0}])
def test_what_torch_cannot_do_is_refused(attributes):
    values = recurrent_values("GRU", 1)
    node = recurrent_node("GRU", ("x", "w", "r"))
    problem = layer_problem(node, values, constants=("w", "r"))
    assert refusal(problem) is None
    node.attributes.update(attributes)  # type: ignore[attr-defined]
    assert refusal(problem) is not None


def test_shorter_sequences_are_refused():
    values = recurrent_values("LSTM", 1) | {"n": np.array([LENGTH, LENGTH - 1], np.int32)}
    node = recurrent_node("LSTM", ("x", "w", "r", "", "n"))
    problem = layer_problem(node, values, constants=("w", "r", "n"))
    assert refusal(problem) == "sequences of different lengths"


def test_an_output_that_is_left_out_changes_nothing_of_the_next():
    values = recurrent_values("LSTM", 1)
    attributes = {"hidden_size": HIDDEN}
    node = Node("LSTM", ("x", "w", "r"), ("", "yh"), attributes, version=22)
    full = layer_problem(recurrent_node("LSTM", ("x", "w", "r")), values, constants=("w", "r"))
    some = dataclasses.replace(full, node=node, outputs=full.outputs[:2])
    (_, state) = run_tuned(some, values)
    np.testing.assert_array_equal(state, run_tuned(full, values)[1])
