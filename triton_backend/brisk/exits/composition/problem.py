"""What composition chooses from, and under which constraints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Candidate:
    """A trained variant at an exit point, as exploration measured it.

    ``point``: index of the exit point, in the order of execution (the paper's i).
    ``hit_rate``: share of all inputs that it would answer if it were the only cache (H).
    ``accuracy``: share of those answers that agree with the base model (A); 1 without hits.
    ``lookup_s``: from the hidden output to the decision, on the serving hardware (T).
    ``memory_bytes``: its weights and what a look-up needs besides (M).
    ``burden_s``: what a look-up that misses adds to the base model's own time.
    """

    point: int
    variant: str
    hit_rate: float
    accuracy: float
    lookup_s: float
    memory_bytes: int
    burden_s: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """Held-out inputs through every candidate; bool [candidates, inputs] both.

    ``hits``: the candidate would answer the input. ``right``: its prediction agrees with the base
    model's, hit or not.
    """

    hits: np.ndarray
    right: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class CompositionProblem:
    """``reach_s[i]``: from the start until the value at point i is there; ``total_s``: the end.

    ``accuracy``: the least cumulative agreement (eq. 7). ``memory_budget_bytes``: None for none.
    ``most_burden_s``: by which a chain may delay an input that all of it misses; None for any.
    ``outcomes``: where given, effective hit rates are counted in them; without, every input that
    hits at a point is taken to hit at later points of higher hit rate too.
    """

    reach_s: tuple[float, ...]
    total_s: float
    candidates: tuple[Candidate, ...]
    accuracy: float
    memory_budget_bytes: int | None = None
    most_burden_s: float | None = None
    outcomes: Outcomes | None = None

    def may_follow(self, first: int | None, second: int | None) -> bool:
        """Whether ``second`` can be the next look-up after ``first`` (eq. 9); None: start, end.

        The look-up of ``first`` has to be over when the value for the next one, or the base
        model's answer, is there.
        """
        if first is None:
            return True
        before = self.candidates[first]
        if second is None:
            until_s = self.total_s
        else:
            after = self.candidates[second]
            if after.point <= before.point:
                return False
            until_s = self.reach_s[after.point]
        return before.lookup_s <= until_s - self.reach_s[before.point]

    def burden_s(self, chosen: Sequence[int]) -> float:
        """What an input that all of ``chosen`` miss takes longer than without them."""
        return sum(self.candidates[index].burden_s for index in chosen)

    def fits(self, chosen: Sequence[int]) -> bool:
        """Whether ``chosen``, in the order of their points, keeps to eq. 8, eq. 9 and the burden
        that a miss may be."""
        ends: list[int | None] = [None, *chosen, None]
        if not all(map(self.may_follow, ends[:-1], ends[1:])):
            return False
        if self.most_burden_s is not None and self.burden_s(chosen) > self.most_burden_s:
            return False
        used_bytes = sum(self.candidates[index].memory_bytes for index in chosen)
        return self.memory_budget_bytes is None or used_bytes <= self.memory_budget_bytes
