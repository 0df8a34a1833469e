"""One-layer problems, and what the reference solution makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from brisk.graph.program import ATTENTION, Node, ValueType
from brisk.solutions.base import BodyRunner, Operand, Problem, Solution, dynamic_operands
from brisk.solutions.catalogue import REFERENCE, default_catalogue
from brisk.solutions.values import dtype_name, from_numpy, to_numpy
from support.models.graph_oracle import run_node

CPU = torch.device("cpu")


def no_bodies(*_: Any) -> BodyRunner:
    raise AssertionError("no solution here has a body")


def layer_problem(
    main: Node,
    values: Mapping[str, np.ndarray],
    *,
    constants: Sequence[str] = (),
    symbolic: Mapping[str, Sequence[int]] | None = None,
    device: torch.device = CPU,
) -> Problem:
    """A problem whose operands have the types of ``values``.

    ``symbolic``: positions of dimensions by operand that the problem shall not know.
    """
    hidden = symbolic or {}

    def operand(name: str) -> Operand:
        array = values[name]
        if name in constants:
            return Operand(name, ValueType(dtype_name(array), array.shape), array)
        positions = hidden.get(name, ())
        shape = tuple(
            f"size{size}" if index in positions else size for index, size in enumerate(array.shape)
        )
        return Operand(name, ValueType(dtype_name(array), shape), None)

    problem = Problem(
        node=main,
        operands=tuple(operand(name) if name else None for name in main.inputs),
        captures=(),
        outputs=tuple(ValueType(None, None) for _ in main.outputs),
        device=device,
    )
    results = run_reference(problem, values)
    types = tuple(
        ValueType(dtype_name(result), (None,) * np.ndim(result) if hidden else result.shape)
        for result in results
    )
    return replace(problem, outputs=types)


def run_reference(problem: Problem, values: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    main = problem.node
    if (
        main.domain,
        main.operator,
    ) == ATTENTION:  # no operator of ONNX, so of no use to the reference
        return list(run_node(main, values).values())
    return run_solution(REFERENCE, problem, values)


def refusal(problem: Problem) -> str | None:
    """Why the tuned solution of the problem's operator does not apply; None where it does."""
    return tuned(problem).check(problem)


def tuned(problem: Problem) -> Solution:
    return default_catalogue()[problem.node.domain, problem.operator]


def run_tuned(problem: Problem, values: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    return run_solution(tuned(problem), problem, values)


def run_solution(
    solution: Solution, problem: Problem, values: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    """The outputs; fails where the solution refuses the problem."""
    assert solution.check(problem) is None, solution.name
    with torch.inference_mode():
        kernel = solution.load(problem, no_bodies)
        operands = [
            from_numpy(values[operand.name], problem.device)
            for operand in dynamic_operands(problem)
        ]
        before = [np.array(to_numpy(operand)) for operand in operands]
        results = [to_numpy(value) for value in kernel(*operands)]
    for operand, original in zip(operands, before, strict=True):
        np.testing.assert_array_equal(
            to_numpy(operand), original, err_msg=f"{solution.name} changed an operand"
        )
    return results


def assert_agrees(
    problem: Problem,
    values: Mapping[str, np.ndarray],
    rtol: float = 1e-4,
    atol: float = 1e-5,
) -> None:
    """The tuned solution's outputs have the reference's dtype, shape and, nearly, values."""
    expected, actual = run_reference(problem, values), run_tuned(problem, values)
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.shape == theirs.shape
        assert dtype_name(ours) == dtype_name(theirs)
        wide = (np.float64,) if theirs.dtype.kind not in "OUSb" else (object,)
        np.testing.assert_allclose(ours.astype(*wide), theirs.astype(*wide), rtol=rtol, atol=atol)
