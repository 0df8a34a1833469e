"""Data movement on torch: the family, of the rules for each kind of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from brisk.solutions.base import Solution
from brisk.solutions.images.resizing import RESIZING
from brisk.solutions.movement.generating import GENERATING
from brisk.solutions.movement.indexing import INDEXING
from brisk.solutions.movement.joining import JOINING
from brisk.solutions.movement.reshaping import RESHAPING
from brisk.solutions.movement.scattering import SCATTERING
from brisk.solutions.movement.sequences import SEQUENCES
from brisk.solutions.rules import Rule, RuleFamily


class Movement(RuleFamily):
    name = "movement"
    rules: ClassVar[Mapping[tuple[str, str], Rule]] = {
        ("", name): rule
        for rules in (RESHAPING, INDEXING, SCATTERING, JOINING, GENERATING, RESIZING, SEQUENCES)
        for name, rule in rules.items()
    }


SOLUTIONS: Sequence[Solution] = (Movement(),)
