"""Choosing a solution, and saying why not another."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from brisk.errors import UnsupportedOperatorError
from brisk.graph.program import Layer, Node, Program, ValueType, Variable
from brisk.solutions.base import Problem, dynamic_operands, make_problem
from brisk.solutions.catalogue import Catalogue, default_catalogue
from brisk.solutions.numbers.elementwise import ELEMENTWISE
from brisk.solutions.rules import Family


def problem_of(node: Node, dtype: str = "float32", **constants: np.ndarray) -> Problem:
    layer = Layer(0, node)
    types = {name: ValueType(dtype, ("n",)) for name in (*node.inputs, *node.outputs)}
    inputs = tuple(Variable(name, types[name]) for name in node.inputs if name not in constants)
    program = Program("p", inputs, (), (layer,), constants, types, ((),))
    return make_problem(program, layer, constants, torch.device("cpu"))


ADD = Node("Add", ("a", "b"), ("c",), version=14)


def test_the_first_solution_that_applies_is_chosen() -> None:
    catalogue = Catalogue([Family("elementwise", ELEMENTWISE)])
    assert catalogue.choose(problem_of(ADD))[0].name == "elementwise"
    assert catalogue.choose(problem_of(ADD, "uint32"))[0].name == "reference"


def test_explaining_names_every_candidate_with_its_reason() -> None:
    catalogue = Catalogue([Family("elementwise", ELEMENTWISE)])
    (first, reason), (last, nothing) = catalogue.consider(problem_of(ADD, "uint32"))
    assert (first.name, last.name) == ("elementwise", "reference")
    assert "'a' is uint32" in (reason or "")
    assert nothing is None


def test_an_operator_without_a_solution_is_named_with_all_reasons() -> None:
    node = Node("Warp", ("a",), ("b",), domain="com.example", version=3, name="w")
    with pytest.raises(UnsupportedOperatorError, match=r"'w' \(Warp, domain com.example, opset 3"):
        default_catalogue().choose(problem_of(node))


def test_an_older_definition_of_an_operator_is_refused() -> None:
    old = Node("Softmax", ("a",), ("b",), version=11)
    (_, reason), *_ = default_catalogue().consider(problem_of(old))
    assert "version 11" in (reason or "")


def test_the_reference_is_last_for_every_operator() -> None:
    *_, (last, _) = default_catalogue().consider(problem_of(ADD))
    assert last.name == "reference"


def test_dynamic_operands_leave_out_constants_and_what_is_absent() -> None:
    node = Node("Clip", ("x", "", "high"), ("y",), version=13)
    problem = problem_of(node, high=np.array(1.0, np.float32))
    assert [operand.name for operand in dynamic_operands(problem)] == ["x"]
    assert problem.operands[1] is None
    assert problem.operands[2] is not None
    assert problem.operands[2].type == ValueType("float32", ())
