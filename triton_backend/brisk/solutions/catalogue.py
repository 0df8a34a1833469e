"""The catalogue of solutions: which one computes a problem, and why not another."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

from brisk.errors import UnsupportedOperatorError
from brisk.solutions.base import Problem, Solution
from brisk.solutions.control import Control
from brisk.solutions.images.convolution import CONVOLUTION, TRANSPOSED_CONVOLUTION
from brisk.solutions.images.detection import DETECTION
from brisk.solutions.images.pooling import POOLING
from brisk.solutions.images.resizing import RESIZING
from brisk.solutions.movement.indexing import INDEXING
from brisk.solutions.movement.joining import JOINING
from brisk.solutions.movement.reshaping import RESHAPING
from brisk.solutions.numbers.activation import ACTIVATION
from brisk.solutions.numbers.elementwise import ELEMENTWISE
from brisk.solutions.numbers.normalisation import NORMALISATION
from brisk.solutions.numbers.reduction import REDUCTION
from brisk.solutions.products.attention import FUSED_ATTENTION
from brisk.solutions.products.gemm import CONTRACTION, PRODUCT
from brisk.solutions.products.quantised import (
    QUANTISED_CONVOLUTION,
    QUANTISED_PRODUCT,
    QUANTISED_SCALING,
)
from brisk.solutions.products.recurrent import RECURRENT
from brisk.solutions.reference import Reference
from brisk.solutions.rules import Family

FAMILIES: tuple[Solution, ...] = (
    Family("torch_convolution", CONVOLUTION),
    Family("torch_transposed_convolution", TRANSPOSED_CONVOLUTION),
    Family("torch_product", PRODUCT),
    Family("fused_attention", FUSED_ATTENTION, "brisk"),
    Family("quantised_product", QUANTISED_PRODUCT),
    Family("quantised_scaling", QUANTISED_SCALING),
    Family("quantised_convolution", QUANTISED_CONVOLUTION),
    Family("torch_recurrent", RECURRENT),
    Family("torch_normalisation", NORMALISATION),
    Family("activation", ACTIVATION),
    Family("elementwise", ELEMENTWISE),
    Family("pooling", POOLING),
    Family("movement", {**RESHAPING, **INDEXING, **JOINING, **RESIZING}),
    Family("reduction", REDUCTION),
    Family("contraction", CONTRACTION),
    Family("detection", DETECTION),
    Control(),
)
"""By torch, each operator in one family."""


class Catalogue:
    """Families, and the reference for the rest. Immutable; shared by all models and threads."""

    def __init__(self, families: Sequence[Solution]) -> None:
        self._families = {pair: family for family in families for pair in family.operators}
        self._reference = Reference()

    def consider(self, problem: Problem) -> Iterator[tuple[Solution, str | None]]:
        """Candidates, best first, with the reason against each, None where it applies."""
        family = self._families.get((problem.domain, problem.operator))
        if family is not None:
            yield family, family.check(problem)
        yield self._reference, self._reference.check(problem)

    def choose(self, problem: Problem) -> tuple[Solution, list[tuple[Solution, str]]]:
        """The best solution that applies, and the better ones, each with the reason against it.

        Raises UnsupportedOperatorError with every candidate's reason where none does.
        """
        passed_over: list[tuple[Solution, str]] = []
        for solution, reason in self.consider(problem):
            if reason is None:
                return solution, passed_over
            passed_over.append((solution, reason))
        reasons = "; ".join(f"{solution.name}: {reason}" for solution, reason in passed_over)
        raise UnsupportedOperatorError(
            f"{problem.layer.main.describe()} has no solution: {reasons}"
        )


@functools.cache
def default_catalogue() -> Catalogue:
    """All families."""
    return Catalogue(FAMILIES)


@functools.cache
def reference_catalogue() -> Catalogue:
    """The reference alone: the oracle of all families."""
    return Catalogue(())
