"""A new version of caches against its predecessor, on the same traffic, before it takes over.

Runs get the one and the other in turns. What counts is the share of the model that a row
did not need: hit rates alone would favour late exits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

FEWEST_ROWS = 200
"""Of each version, before they are compared."""

FEWEST_AUDITED = 30
"""Early answers of the new version: if half of them were wrong, the audit would have said so."""

PATIENT_ROWS = 4000

DEVIATIONS = 2.0
"""The new version is worse where it saves less by more than so many standard errors."""


class TrialResult(str, Enum):
    """``OPEN``: go on in turns."""

    OPEN = "open"
    BETTER = "not worse"
    WORSE = "worse"


@dataclass(slots=True)
class Saving:
    """Shares of the model that rows did not need: how many rows, their sum and that of squares."""

    rows: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, rows: int, share: float) -> None:
        """``rows`` rows saved ``share`` each; 0 for those that the model answered."""
        self.rows += rows
        self.total += rows * share
        self.squares += rows * share * share

    @property
    def mean(self) -> float:
        return self.total / self.rows if self.rows else 0.0

    @property
    def variance_of_mean(self) -> float:
        return max(0.0, self.squares / self.rows - self.mean**2) / self.rows if self.rows else 0.0


@dataclass(slots=True)
class VersionTrial:
    """Two versions side by side; ``turn`` counts runs."""

    present: Saving = field(default_factory=Saving)
    candidate: Saving = field(default_factory=Saving)
    turn: int = 0

    def takes_candidate(self) -> bool:
        """Whether the next run gets the new version: every other one does."""
        self.turn += 1
        return self.turn % 2 == 0

    def verdict(self, audited: int) -> TrialResult:
        """``audited``: answers of the candidate that were compared with the whole model's.

        Where audits do not come, since nothing is left for them, it is judged without after
        ``PATIENT_ROWS`` rows.
        """
        if min(self.present.rows, self.candidate.rows) < FEWEST_ROWS:
            return TrialResult.OPEN
        if (
            audited < FEWEST_AUDITED
            and self.candidate.mean > 0
            and self.candidate.rows < PATIENT_ROWS
        ):
            return TrialResult.OPEN
        error = math.sqrt(self.present.variance_of_mean + self.candidate.variance_of_mean)
        behind = self.present.mean - self.candidate.mean
        return TrialResult.WORSE if behind > DEVIATIONS * error else TrialResult.BETTER
