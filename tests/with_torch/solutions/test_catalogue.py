"""Choosing a solution, and saying why not another."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from brisk.errors import UnsupportedOperatorError
from brisk.graph.program import Node, Program, ValueType, Variable
from brisk.solutions.base import Problem, dynamic_operands, make_problem
from brisk.solutions.catalogue import choose, default_catalogue


def problem_of(node: Node, dtype: str = "float32", **constants: np.ndarray) -> Problem:
    types = {name: ValueType(dtype, ("n",)) for name in (*node.inputs, *node.outputs)}
    inputs = tuple(Variable(name, types[name]) for name in node.inputs if name not in constants)
    program = Program("p", inputs, (), (node,), constants, types, ((),))
    return make_problem(program, node, constants, torch.device("cpu"))


ADD = Node("Add", ("a", "b"), ("c",), version=14)


def test_the_first_solution_that_applies_is_chosen() -> None:
    assert choose(problem_of(ADD), default_catalogue())[0].name == "elementwise"
    assert choose(problem_of(ADD, "uint32"), default_catalogue())[0].name == "reference"


def test_explaining_names_every_candidate_with_its_reason() -> None:
    chosen, [(better, reason)] = choose(problem_of(ADD, "uint32"), default_catalogue())
    assert (better.name, chosen.name) == ("elementwise", "reference")
    assert "'a' is uint32" in reason


def test_an_operator_without_a_solution_is_named_with_all_reasons() -> None:
    node = Node("Warp", ("a",), ("b",), domain="com.example", version=3, name="w")
    with pytest.raises(UnsupportedOperatorError, match=r"'w' \(Warp, domain com.example, opset 3"):
        choose(problem_of(node), default_catalogue())


def test_an_older_definition_of_an_operator_is_refused() -> None:
    old = Node("Softmax", ("a",), ("b",), version=11)
    _, [(_, reason)] = choose(problem_of(old), default_catalogue())
    assert "version 11" in reason


def test_dynamic_operands_leave_out_constants_and_what_is_absent() -> None:
    node = Node("Clip", ("x", "", "high"), ("y",), version=13)
    problem = problem_of(node, high=np.array(1.0, np.float32))
    assert [operand.name for operand in dynamic_operands(problem)] == ["x"]
    assert problem.operands[1] is None
    assert problem.operands[2] is not None
    assert problem.operands[2].type == ValueType("float32", ())
