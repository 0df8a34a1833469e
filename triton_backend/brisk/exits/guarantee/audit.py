"""The audit of early answers by live traffic: of their promise, and of new versions.

Sampled early answers are compared with the whole model's. For each exit an e-detector runs (a
CUSUM of likelihood ratios; Shin, Ramdas and Rinaldo, 2023): each audited answer multiplies its
evidence by how much likelier it is if the exit makes ``EXTRA_MISTAKES`` more mistakes than it
promises than if it just keeps its promise, and evidence never falls below 1. While the promise
holds, the evidence reaches ``LIMIT`` once in ``LIMIT`` audited answers at the soonest, on average;
it needs no fixed number of samples and may be looked at after each.

A plain lower bound on the live share would fall under the promise with the first answers, however
right they are: a few prove nothing. What is asked here is whether the promise is refuted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum

LIMIT = 1000.0
"""The evidence at which an exit is switched off."""

EXTRA_MISTAKES = 0.05
"""The share of mistakes, in excess of the promised one, of the broken exit that is tested for."""

STATED_AUDITS = 400
"""The audits within which an exit is off that agrees 10 points less than a promise of 95 % or more
(in 4,000 simulations never more than 355)."""


@dataclass(slots=True)
class ExitAudit:
    """The audited answers of one exit that promises ``accuracy``."""

    accuracy: float
    audited: int = 0
    agreed: int = 0
    evidence: float = 1.0
    is_off: bool = False
    """Whether the promise was refuted."""

    def note(self, agrees: bool) -> bool:
        """Take in one audited answer. Return whether it switches the exit off."""
        broken = self.accuracy - EXTRA_MISTAKES
        mistaken = (1 - broken) / (1 - self.accuracy)
        ratio = broken / self.accuracy if agrees else mistaken
        self.audited += 1
        self.agreed += agrees
        self.evidence = max(1.0, self.evidence * ratio)
        if self.evidence >= LIMIT and not self.is_off:
            self.is_off = True
            return True
        return False


@dataclass(slots=True)
class CascadeAudit:
    """The audits of all exits of a cascade, for each promise: a stricter one has thresholds of its
    own."""

    exits: dict[tuple[int, float], ExitAudit] = field(default_factory=dict)
    """The audits by the exit's index and the accuracy that its answers promised."""

    def note(self, exit_index: int, accuracy: float, agrees: bool) -> bool:
        """Take in one audited answer of an exit that promised ``accuracy``, like
        ``ExitAudit.note``."""
        audit = self.exits.setdefault((exit_index, accuracy), ExitAudit(accuracy))
        return audit.note(agrees)

    def of(self, exit_index: int) -> list[ExitAudit]:
        """Return the audits of one exit."""
        return [audit for (index, _), audit in self.exits.items() if index == exit_index]

    @property
    def audited(self) -> int:
        """The audited answers of all exits so far."""
        return sum(audit.audited for audit in self.exits.values())

    def switched_off(self, accuracy: float) -> frozenset[int]:
        """Return the exits of which a promise of ``accuracy``, or of less, was refuted."""
        return frozenset(
            index
            for (index, promised), audit in self.exits.items()
            if audit.is_off and promised <= accuracy
        )


FEWEST_ROWS = 200
"""The fewest rows of each version before the two are compared."""

FEWEST_AUDITED = 30
"""The fewest audited early answers of the new version: if half of them were wrong, the audit would
have switched exits off."""

PATIENT_ROWS = 4000
"""Rows after which the new version is judged without audits."""

DEVIATIONS = 2.0
"""The number of standard errors by which a new version that is worse saves less."""


class TrialResult(str, Enum):
    """The result of a trial; ``OPEN``: it goes on, runs interleaved."""

    OPEN = "open"
    BETTER = "not worse"
    WORSE = "worse"


@dataclass(slots=True)
class Saving:
    """The shares of the model that rows saved: how many rows, their sum and that of squares."""

    rows: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, rows: int, share: float) -> None:
        """Add ``rows`` rows that saved ``share`` each; 0 for those that the model answered."""
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
    """A new version against its predecessor on the same traffic, before it takes over.

    Runs of the two are interleaved. What counts is the share of the model that a row saved: hit
    rates alone would favour late exits. Of rows that ask for a level which one of the two lacks,
    that one saves nothing: so a version ends that lacks what requests ask for, and its trial, too.
    """

    repairs: bool = False
    """Whether the new version repairs the promise. Then it gets all runs that ask for a level
    which it has, and may save less: it only has to be asked for and to pass its audits."""
    present: Saving = field(default_factory=Saving)
    candidate: Saving = field(default_factory=Saving)
    turn: int = 0
    """The number of runs so far that either version could answer."""
    lacked: int = 0
    """The rows that asked for a level which only the predecessor has."""

    def lack(self, rows: int, *, is_candidate: bool) -> None:
        """Note rows of a run that asks for a level which one of the two versions lacks."""
        if is_candidate:
            self.lacked += rows
        (self.candidate if is_candidate else self.present).add(rows, 0.0)

    def takes_candidate(self) -> bool:
        """Count a run. Return whether it gets the new version: every other one does."""
        self.turn += 1
        return self.repairs or self.turn % 2 == 0

    def verdict(self, audited: int) -> TrialResult:
        """Return the result so far.

        ``audited``: answers of the candidate that were compared with the whole model's. If no time
        is left for audits, it is judged without them after ``PATIENT_ROWS`` rows.
        """
        if self.candidate.rows < FEWEST_ROWS:
            return TrialResult.OPEN
        if self.present.rows < FEWEST_ROWS and not self.repairs:
            return TrialResult.OPEN
        if (
            audited < FEWEST_AUDITED
            and self.candidate.mean > 0
            and self.candidate.rows < PATIENT_ROWS
        ):
            return TrialResult.OPEN
        if self.repairs:
            is_asked = self.candidate.mean > 0 or 2 * self.lacked < self.candidate.rows
            return TrialResult.BETTER if is_asked else TrialResult.WORSE
        error = math.sqrt(self.present.variance_of_mean + self.candidate.variance_of_mean)
        behind = self.present.mean - self.candidate.mean
        return TrialResult.WORSE if behind > DEVIATIONS * error else TrialResult.BETTER
