"""ONNX's node cases on the torch engine, which computes models on a GPU: how each one ends."""

from __future__ import annotations

import fnmatch
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from brisk.errors import BriskError
from brisk.execution.frame import run_serially
from brisk.execution.loading import load_program
from brisk.graph.reader import build_program
from brisk.solutions.catalogue import Catalogue
from brisk.solutions.values import from_numpy, to_numpy
from brisk_client.benchmarks.conformance import as_array, compare

EXPECTED_SHARE = 0.97
"""Of all cases, excluded ones counted as failed."""


@dataclass(frozen=True, slots=True)
class CaseOutcome:
    """What one case gave: no failure where it passed; the solutions of its layers, in order."""

    name: str
    failure: str | None
    solutions: tuple[str, ...]
    outputs: tuple[Any, ...]

    @property
    def passed(self) -> bool:
        return self.failure is None

    @property
    def is_tuned(self) -> bool:
        """Whether any layer ran on something else than the reference solution."""
        return any(name != "reference" for name in self.solutions)


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Cases, by a shell pattern of their names, that cannot pass, and why.

    ``by_chance``: one may pass now and then, which says nothing.
    """

    pattern: str
    reason: str
    by_chance: bool = False

    def covers(self, name: str) -> bool:
        return fnmatch.fnmatchcase(name, self.pattern)


EXCLUSIONS: tuple[Exclusion, ...] = (
    Exclusion("test_bernoulli*", "random numbers, of no defined generator", by_chance=True),
)


def exclusion_of(name: str) -> Exclusion | None:
    return next((exclusion for exclusion in EXCLUSIONS if exclusion.covers(name)), None)


def passing_exclusions(outcomes: Iterable[CaseOutcome]) -> list[str]:
    """Excluded cases that pass all the same, other than by chance: their exclusion is wrong."""
    return [
        outcome.name
        for outcome in outcomes
        if outcome.passed and (found := exclusion_of(outcome.name)) and not found.by_chance
    ]


def run_case(
    case: Any, catalogue: Catalogue, device: torch.device, *, optimised: bool = True
) -> CaseOutcome:
    """Load the case's model and compare every output of every data set; never raises."""
    solutions: tuple[str, ...] = ()
    outputs: list[Any] = []
    try:
        program = build_program(case.model, name=case.name, optimised=optimised)
        loaded = load_program(program, device, catalogue)
        solutions = tuple(layer.solution.name for layer in loaded.layers)
        for given, expected in case.data_sets:
            names = [value.name for value in case.model.graph.input]
            inputs = {
                name: from_numpy(as_array(value), device)
                for name, value in zip(names, given, strict=False)
            }
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # numpy's, from the reference: overflow, log of 0
                results = run_serially(loaded, inputs)
            made = [to_numpy(results[value.name]) for value in case.model.graph.output]
            outputs.extend(made)
            for value, actual, wanted in zip(case.model.graph.output, made, expected, strict=True):
                difference = compare(actual, as_array(wanted), case.rtol, case.atol)
                if difference is not None:
                    failure = f"output '{value.name}': {difference}"
                    return CaseOutcome(case.name, failure, solutions, tuple(outputs))
    except BriskError as error:
        return CaseOutcome(case.name, f"{type(error).__name__}: {error}", solutions, ())
    return CaseOutcome(case.name, None, solutions, tuple(outputs))
