"""The catalogue of solutions: which one computes a problem, and why not another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TypeAlias

import onnx

from brisk.errors import UnsupportedOperatorError
from brisk.graph.files.proto import evaluator_of
from brisk.graph.program import ATTENTION
from brisk.solutions.base import Kernel, LoadBody, Problem, Solution, dynamic_operands
from brisk.solutions.control import CONTROL
from brisk.solutions.images.convolution import CONVOLUTION
from brisk.solutions.images.detection import DETECTION
from brisk.solutions.images.pooling import POOLING
from brisk.solutions.images.resizing import RESIZING
from brisk.solutions.movement.indexing import INDEXING
from brisk.solutions.movement.joining import JOINING
from brisk.solutions.movement.reshaping import RESHAPING
from brisk.solutions.numbers.elementwise import ACTIVATION, ELEMENTWISE
from brisk.solutions.numbers.normalisation import NORMALISATION
from brisk.solutions.numbers.reduction import REDUCTION
from brisk.solutions.products.gemm import FUSED_ATTENTION, PRODUCT
from brisk.solutions.products.quantised import QUANTISED
from brisk.solutions.products.recurrent import RECURRENT
from brisk.solutions.rules import Rule, solution_of
from brisk.solutions.values import Value, from_numpy, to_numpy


def _check(problem: Problem) -> str | None:
    node = problem.node
    if onnx.defs.has(node.operator, node.domain):
        return None
    return f"{node.describe()} is no standard ONNX operator"


def _load(problem: Problem, _: LoadBody) -> Kernel:
    evaluator = evaluator_of(problem.node)
    constants = {
        operand.name: operand.constant
        for operand in (*problem.operands, *problem.captures)
        if operand is not None and operand.constant is not None
    }
    names = [operand.name for operand in dynamic_operands(problem)]
    outputs = problem.node.outputs

    def kernel(*values: Value) -> Sequence[Value]:
        given = dict(zip(names, map(to_numpy, values), strict=True))
        made = evaluator.run(None, {**constants, **given})
        return [
            from_numpy(value, problem.device) if name else None
            for name, value in zip(outputs, made, strict=True)
        ]

    return kernel


REFERENCE = Solution("reference", _check, _load)
"""Any layer by its operator's definition, on ``onnx.reference``.

Slow, complete and right: the oracle of all others, and what serves operators that have none.
Computes with numpy on the CPU whatever the device; values are moved both ways.
"""

RULES: Mapping[str, Mapping[str, Rule]] = {
    "convolution": CONVOLUTION,
    "product": PRODUCT,
    "quantised": QUANTISED,
    "recurrent": RECURRENT,
    "normalisation": NORMALISATION,
    "activation": ACTIVATION,
    "elementwise": ELEMENTWISE,
    "pooling": POOLING,
    "movement": {**RESHAPING, **INDEXING, **JOINING, **RESIZING},
    "reduction": REDUCTION,
    "detection": DETECTION,
}
"""By torch, under the names of their families."""

Catalogue: TypeAlias = Mapping[tuple[str, str], Solution]
"""A solution by domain and operator; the reference is for the rest."""


@cache
def default_catalogue() -> Catalogue:
    """All solutions by torch."""
    return {
        **{
            ("", operator): solution_of(family, rule)
            for family, rules in RULES.items()
            for operator, rule in rules.items()
        },
        **{("", operator): solution for operator, solution in CONTROL.items()},
        ATTENTION: solution_of("attention", FUSED_ATTENTION),
    }


def choose(problem: Problem, catalogue: Catalogue) -> tuple[Solution, list[tuple[Solution, str]]]:
    """The best solution that applies, and the better ones, each with the reason against it.

    Raises UnsupportedOperatorError with every candidate's reason where none does.
    """
    passed_over: list[tuple[Solution, str]] = []
    tuned = catalogue.get((problem.node.domain, problem.operator))
    for solution in (REFERENCE,) if tuned is None else (tuned, REFERENCE):
        reason = solution.check(problem)
        if reason is None:
            return solution, passed_over
        passed_over.append((solution, reason))
    reasons = "; ".join(f"{solution.name}: {reason}" for solution, reason in passed_over)
    raise UnsupportedOperatorError(f"{problem.node.describe()} has no solution: {reasons}")
