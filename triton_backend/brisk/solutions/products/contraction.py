"""Einsum on torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch

from brisk.solutions.base import Kernel, Problem, Solution
from brisk.solutions.rules import FLOATS, Rule, RuleFamily, attribute, bind, takes


def _load_einsum(problem: Problem) -> Kernel:
    equation = attribute(problem, "equation", "")
    return bind(problem, lambda *operands: torch.einsum(equation, *operands))


class Contraction(RuleFamily):
    name = "contraction"
    rules: ClassVar[Mapping[tuple[str, str], Rule]] = {
        ("", "Einsum"): Rule(_load_einsum, takes(FLOATS), since=12),
    }


SOLUTIONS: Sequence[Solution] = (Contraction(),)
