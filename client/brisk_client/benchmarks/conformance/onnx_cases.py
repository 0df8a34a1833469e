"""The ONNX project's own node test cases, run through the program and its torch solutions."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper

from brisk.errors import BriskError
from brisk.execution.frame import run_serially
from brisk.execution.loading import load_program
from brisk.graph.reader import build_program
from brisk.solutions.catalogue import Catalogue
from brisk.solutions.values import from_numpy, to_numpy

EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
"""Spacing of numbers near 1, by dtype.

The cases expect what numpy gives that rounds after every step; who rounds once differs by this.
"""


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


def collect_cases() -> list[Any]:
    """All node cases of the installed onnx, in its order; takes seconds."""
    from onnx.backend.test.case import node

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, from making the expected values
        return list(node.collect_testcases(None))


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


def as_array(value: Any) -> Any:
    """A case's datum as numpy has it: tensors decoded, sequences as lists."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, (list, tuple)):
        return [as_array(item) for item in value]
    return value


def compare(actual: Any, expected: Any, rtol: float, atol: float) -> str | None:
    """Why ``actual`` is not ``expected``, in words; None where it is, within the tolerance."""
    if expected is None or isinstance(expected, dict):
        return None if actual == expected else f"{actual!r} is not {expected!r}"
    if isinstance(expected, list):
        return _compare_sequences(actual, expected, rtol, atol)
    if not isinstance(actual, (np.ndarray, np.generic)):
        return f"{type(actual).__name__} is no array"
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape:
        return f"shape {actual.shape} is not {expected.shape}"
    if expected.dtype.kind in "OUS":
        return None if (actual == expected).all() else "the strings differ"
    if actual.dtype != expected.dtype:
        return f"dtype {actual.dtype} is not {expected.dtype}"
    return _compare_numbers(actual, expected, rtol, atol)


def _compare_numbers(
    actual: np.ndarray, expected: np.ndarray, rtol: float, atol: float
) -> str | None:
    epsilon = EPSILON.get(expected.dtype.name, 0.0)
    if expected.dtype.kind != "c":
        actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    rtol, atol = max(rtol, epsilon), max(atol, epsilon)
    if np.allclose(actual, expected, rtol=rtol, atol=atol, equal_nan=True):
        return None
    with np.errstate(invalid="ignore"):
        furthest = np.nanmax(np.abs(actual - expected))
    return f"differs by up to {furthest:.3g} (rtol {rtol:.1g}, atol {atol:.1g})"


def _compare_sequences(
    actual: Any, expected: Sequence[Any], rtol: float, atol: float
) -> str | None:
    if not isinstance(actual, list) or len(actual) != len(expected):
        return f"{actual!r} is no sequence of {len(expected)}"
    for place, (mine, wanted) in enumerate(zip(actual, expected, strict=True)):
        difference = compare(mine, wanted, rtol, atol)
        if difference is not None:
            return f"element {place}: {difference}"
    return None
