"""The ordered catalogue of solutions: which one computes a problem, and why not the others."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator, Sequence

from brisk.errors import UnsupportedOperatorError
from brisk.solutions.base import Applicability, Problem, Solution

FAMILIES: tuple[str, ...] = (
    "images.convolution",
    "images.convolution_transpose",
    "products.gemm",
    "products.attention",
    "products.quantised",
    "products.quantised_scaling",
    "products.quantised_convolution",
    "products.recurrent",
    "numbers.normalisation",
    "numbers.activation",
    "numbers.elementwise",
    "images.pooling",
    "movement.family",
    "numbers.reduction",
    "products.contraction",
    "images.detection",
    "control",
    "reference",
)
"""Modules of this package, most specialised first; each has ``SOLUTIONS``, best first."""


class Catalogue:
    """Solutions in order of preference. Immutable; shared by all models and threads."""

    def __init__(self, solutions: Sequence[Solution]) -> None:
        self.solutions = tuple(solutions)
        operators = {pair for solution in solutions for pair in solution.operators()}
        self._by_operator = {
            pair: tuple(
                solution
                for solution in solutions
                if not solution.operators() or pair in solution.operators()
            )
            for pair in operators
        }
        self._general = tuple(solution for solution in solutions if not solution.operators())

    def candidates(self, problem: Problem) -> tuple[Solution, ...]:
        """The solutions that know the problem's operator, best first."""
        return self._by_operator.get((problem.domain, problem.operator), self._general)

    def consider(self, problem: Problem) -> Iterator[tuple[Solution, Applicability]]:
        """Candidates with their verdicts, best first; lazy, so a caller may stop at the first."""
        for solution in self.candidates(problem):
            yield solution, solution.check(problem)

    def choose(self, problem: Problem) -> Solution:
        """The best solution that applies.

        Raises UnsupportedOperatorError with every candidate's reason where none does.
        """
        reasons = []
        for solution, verdict in self.consider(problem):
            if verdict.ok:
                return solution
            reasons.append(f"{solution.name}: {verdict.reason}")
        raise UnsupportedOperatorError(
            f"{problem.layer.main.describe()} has no solution: "
            + ("; ".join(reasons) or "no candidate knows the operator")
        )

    def explain(self, problem: Problem) -> list[tuple[Solution, Applicability]]:
        """Every candidate with its verdict, in order of preference."""
        return list(self.consider(problem))


@functools.cache
def default_catalogue() -> Catalogue:
    """All families; loads their modules on the first call."""
    return _catalogue_of(FAMILIES)


@functools.cache
def reference_catalogue() -> Catalogue:
    """The reference family alone: the oracle of all the others."""
    return _catalogue_of(("reference",))


def _catalogue_of(families: Sequence[str]) -> Catalogue:
    modules = [importlib.import_module(f"brisk.solutions.{family}") for family in families]
    return Catalogue([solution for module in modules for solution in module.SOLUTIONS])
