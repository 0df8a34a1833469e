"""Data movement on torch: the family, of the rules for each kind of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from brisk.solutions.base import Solution
from brisk.solutions.generating import GENERATING
from brisk.solutions.indexing import INDEXING
from brisk.solutions.joining import JOINING
from brisk.solutions.reshaping import RESHAPING
from brisk.solutions.resizing import RESIZING
from brisk.solutions.rules import Rule, RuleFamily
from brisk.solutions.scattering import SCATTERING
from brisk.solutions.sequences import SEQUENCES


class Movement(RuleFamily):
    name = "movement"
    rules: ClassVar[Mapping[tuple[str, str], Rule]] = {
        ("", name): rule
        for rules in (RESHAPING, INDEXING, SCATTERING, JOINING, GENERATING, RESIZING, SEQUENCES)
        for name, rule in rules.items()
    }


SOLUTIONS: Sequence[Solution] = (Movement(),)
