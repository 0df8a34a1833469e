"""Choosing a solution, and saying why not another."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from brisk.errors import UnsupportedOperatorError
from brisk.graph.program import Layer, Node, Program, ValueType, Variable
from brisk.solutions.base import Problem
from brisk.solutions.catalogue import Catalogue, default_catalogue
from brisk.solutions.numbers.elementwise import Elementwise
from brisk.solutions.problem import dynamic_operands, make_problem
from brisk.solutions.reference import Reference


def problem_of(node: Node, dtype: str = "float32", **constants: np.ndarray) -> Problem:
    layer = Layer(0, node)
    types = {name: ValueType(dtype, ("n",)) for name in (*node.inputs, *node.outputs)}
    inputs = tuple(Variable(name, types[name]) for name in node.inputs if name not in constants)
    program = Program("p", inputs, (), (layer,), constants, types, ((),))
    return make_problem(program, layer, constants, torch.device("cpu"))


ADD = Node("Add", ("a", "b"), ("c",), version=14)


def test_the_first_solution_that_applies_is_chosen() -> None:
    catalogue = Catalogue([Elementwise(), Reference()])
    assert catalogue.choose(problem_of(ADD)).name == "elementwise"
    assert catalogue.choose(problem_of(ADD, "uint32")).name == "reference"


def test_explaining_names_every_candidate_with_its_reason() -> None:
    verdicts = Catalogue([Elementwise(), Reference()]).explain(problem_of(ADD, "uint32"))
    assert [(solution.name, verdict.ok) for solution, verdict in verdicts] == [
        ("elementwise", False),
        ("reference", True),
    ]
    assert "'a' is uint32" in verdicts[0][1].reason


def test_an_operator_without_a_solution_is_named_with_all_reasons() -> None:
    node = Node("Warp", ("a",), ("b",), domain="com.example", version=3, name="w")
    with pytest.raises(UnsupportedOperatorError, match=r"'w' \(Warp, domain com.example, opset 3"):
        default_catalogue().choose(problem_of(node))


def test_an_older_definition_of_an_operator_is_refused() -> None:
    old = Node("Softmax", ("a",), ("b",), version=11)
    (_, verdict), *_ = default_catalogue().explain(problem_of(old))
    assert not verdict.ok
    assert "version 11" in verdict.reason


def test_the_reference_is_last_for_every_operator() -> None:
    assert default_catalogue().solutions[-1].name == "reference"


def test_dynamic_operands_leave_out_constants_and_what_is_absent() -> None:
    node = Node("Clip", ("x", "", "high"), ("y",), version=13)
    problem = problem_of(node, high=np.array(1.0, np.float32))
    assert [operand.name for operand in dynamic_operands(problem)] == ["x"]
    assert problem.operands[1] is None
    assert problem.operands[2] is not None
    assert problem.operands[2].type == ValueType("float32", ())
