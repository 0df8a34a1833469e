"""Chooses candidate cascades that are worth a benchmark, by what calibration will likely prove.

Hits at one strictness say little about what can be *proved*: of three exits calibration may prove
one, and not the best one. So single caches and pairs are considered, each by what calibration
proves on bootstrap samples of the tuning rows.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from brisk.exits.exploration.composition import CompositionProblem, Tried
from brisk.exits.exploration.settings import ExplorationSettings
from brisk.exits.guarantee.calibration import (
    Calibration,
    CascadeCount,
    Promise,
    Scored,
    Thresholds,
    count_cascade,
    in_order,
    last_proved,
    scaled,
    shared,
)
from brisk.exits.guarantee.proposals import from_safe_to_bold, propose, propose_for

MOST_CANDIDATES = 4

COMBINED = 6
"""The number of single caches, those of least latency, whose pairs are considered."""

BOOTSTRAPPED = 10
"""The number of most promising cascades whose calibration is tried on tuning rows."""

DRAWS = 10
"""The number of bootstrap samples from either half of the tuning rows."""

SEQUENCES = 3
"""The number of cascades that held-out rows test, sharing the error: the worst of many splits
gains more than the others lose by it."""

STRICTNESS = tuple(step / 40 for step in range(41))
"""The strictness of proposals, in smaller steps than calibration's own: less is lost by one that
is not proved."""


@dataclass(frozen=True, slots=True)
class CandidateCascade:
    """A cascade of tried variants, with thresholds like those that calibration will prove."""

    synchronous: bool
    chosen: tuple[int, ...]
    """Indices of the variants."""
    thresholds: Thresholds
    latency_s: float
    """The mean latency that is expected."""


def candidate_cascades(
    problems: Mapping[bool, CompositionProblem],
    tried: Sequence[Tried],
    settings: ExplorationSettings,
) -> list[CandidateCascade]:
    """Return the cascades of least expected latency, at least one for each evaluation mode.

    None is slower than the model.
    """
    by_mode = [
        Composer(problem, synchronous, tried, settings.promise).cascades()
        for synchronous, problem in problems.items()
    ]
    best = [cascades[0] for cascades in by_mode if cascades]
    others = _fastest(one for cascades in by_mode for one in cascades[1:])
    return [*best, *others[: MOST_CANDIDATES - len(best)]]


@dataclass(frozen=True, slots=True)
class _Proof:
    """The proof of a cascade by held-out rows."""

    is_on_time: bool
    saved_s: float
    chosen: tuple[int, ...]
    calibration: Calibration


@dataclass(frozen=True, slots=True)
class Composer:
    """Cascades for one evaluation mode and one promise, judged on tuning rows alone."""

    problem: CompositionProblem
    synchronous: bool
    tried: Sequence[Tried]
    promise: Promise

    def cascades(self, *more: tuple[int, ...]) -> list[CandidateCascade]:
        """Return the most promising cascades, and those of ``more``, the fastest first; all are
        faster than the model."""
        considered: dict[tuple[int, ...], CandidateCascade] = {}
        candidates = self.problem.candidates
        # A second whole model in the exit thread would take the first one's processors.
        whole = [i for i, one in enumerate(candidates) if one.is_whole and self.synchronous]
        for index, one in enumerate(candidates):
            if not one.is_whole or (one.point == 0 and self.synchronous):
                self._consider((index,), considered)
        singles = self._of_predictors(one.chosen[0] for one in _fastest(considered.values()))
        for pair in itertools.combinations(singles, 2):
            self._consider(in_turn(self.problem, pair), considered)
        for chosen in [one.chosen for one in _fastest(considered.values())[:COMBINED]]:
            last = candidates[chosen[-1]]
            for index in whole:  # for what all of these miss
                if not last.is_whole and candidates[index].point == last.point:
                    self._consider((*chosen, index), considered)
        promising = {one.chosen: one for one in _fastest(considered.values())[:BOOTSTRAPPED]}
        for chosen in more:
            self._consider(chosen, promising)
        expected = map(self.bootstrapped, promising.values())
        return _fastest(one for one in expected if one.latency_s < self.problem.total_s)

    def _of_predictors(self, ranked: Iterable[int]) -> list[int]:
        """Return the first ``COMBINED`` of ``ranked``, each with a different predictor."""
        first: dict[tuple[int, str], int] = {}
        for index in ranked:
            one = self.problem.candidates[index]
            first.setdefault((one.point, one.variant), index)
        return list(first.values())[:COMBINED]

    def calibrated(
        self, cascades: Sequence[CandidateCascade], most_late_s: float = math.inf
    ) -> tuple[tuple[int, ...], Calibration] | None:
        """Return the most that held-out rows prove of one of ``cascades``: its exits that answer
        or reject any of them, with thresholds and counts.

        Each is tested in a sequence of its own; all share the error. One that delays inputs which
        it misses by more than ``most_late_s`` is taken only if no other is proved.
        """
        promise = shared(self.promise, len(cascades))
        proofs = []
        for one in cascades:
            held_out = in_order([self.tried[index].held_out for index in one.chosen])
            sequence = self._sequence(one.chosen, self._tuning(one.chosen), promise)
            calibration = last_proved(sequence, held_out, promise)
            if calibration is not None:
                is_on_time = self.problem.overhead_s(one.chosen) <= most_late_s
                saved_s = saving_of(self.problem, one.chosen)(calibration.count)
                proofs.append(_Proof(is_on_time, saved_s, one.chosen, calibration))
        if not proofs:
            return None
        best = max(proofs, key=lambda proof: (proof.is_on_time, proof.saved_s))
        rejecting = [
            place
            for place, index in enumerate(best.chosen)
            if math.isfinite(best.calibration.thresholds[place])
            and not self.tried[index].held_out.near.all()
        ]
        return _answering(best.chosen, best.calibration, rejecting)

    def _sequence(
        self, chosen: Sequence[int], tuning: Scored, promise: Promise
    ) -> list[Thresholds]:
        """Return thresholds of the cascade in testing order."""
        proposals = propose(tuning, promise.accuracy, STRICTNESS)
        saving_s = saving_of(self.problem, chosen)
        return from_safe_to_bold(proposals, tuning, self._held_out_rows, promise, saving_s)

    def _consider(
        self, chosen: Sequence[int], considered: dict[tuple[int, ...], CandidateCascade]
    ) -> None:
        """Add the cascade to ``considered`` if it is provable and faster than the model."""
        one = self.provable(chosen)
        if one is not None and one.latency_s < self.problem.total_s:
            before = considered.get(one.chosen, one)
            considered[one.chosen] = min(one, before, key=lambda either: either.latency_s)

    def provable(self, chosen: Sequence[int]) -> CandidateCascade | None:
        """Return the most that held-out rows would prove if all went as with the tuning rows, with
        only the exits that answer then."""
        if not chosen or not self.problem.fits(chosen):
            return None
        tuning, saving_s = self._tuning(chosen), saving_of(self.problem, chosen)
        share = self._held_out_rows / max(tuning.scores.shape[1], 1)
        best: Calibration | None = None
        for thresholds in propose(tuning, self.promise.accuracy):
            count = count_cascade(tuning, thresholds)
            if best is not None and saving_s(count) <= saving_s(best.count):
                continue
            if self.promise.keeps(scaled(count, share)):
                best = Calibration(thresholds, count)
        if best is None:
            return None
        latency_s = self.problem.total_s - saving_s(best.count)
        exits, answering = _answering(chosen, best)
        return CandidateCascade(self.synchronous, exits, answering.thresholds, latency_s)

    def bootstrapped(self, one: CandidateCascade) -> CandidateCascade:
        """Return the cascade with what calibration proves on average.

        One half of the tuning rows proposes; held-out rows are drawn from the other half.
        """
        tuning, saving_s = self._tuning(one.chosen), saving_of(self.problem, one.chosen)
        rows = tuning.scores.shape[1]
        random = np.random.default_rng(rows)
        halves = np.array_split(random.permutation(rows), 2)
        promise = shared(self.promise, SEQUENCES)
        saved_s = []
        for proposing, proving in (halves, halves[::-1]):
            ours, theirs = tuning.take(proposing), tuning.take(proving)
            sequence = self._sequence(one.chosen, ours, promise)
            for _ in range(DRAWS):
                drawn = theirs.take(random.integers(len(proving), size=self._held_out_rows))
                calibration = last_proved(sequence, drawn, promise)
                saved_s.append(0.0 if calibration is None else saving_s(calibration.count))
        mean_s = statistics.mean(saved_s)
        likely = min(
            propose_for(range(len(one.chosen)), tuning, self.promise.accuracy),
            key=lambda thresholds: abs(saving_s(count_cascade(tuning, thresholds)) - mean_s),
        )
        return replace(one, thresholds=likely, latency_s=self.problem.total_s - mean_s)

    @property
    def _held_out_rows(self) -> int:
        return self.tried[0].held_out.scores.shape[0]

    def _tuning(self, chosen: Sequence[int]) -> Scored:
        return in_order([self.tried[index].tune for index in chosen])


def _answering(
    chosen: Sequence[int], calibration: Calibration, rejecting: Collection[int] = ()
) -> tuple[tuple[int, ...], Calibration]:
    """Return the exits of ``chosen`` that answer anything, with their thresholds and counts.

    Those at the places ``rejecting`` stay, too: what they reject no later exit answers, nor was it
    counted in the proof of later ones.
    """
    exits = calibration.count.exits
    places = [place for place, one in enumerate(exits) if one.answered or place in rejecting]
    thresholds = tuple(calibration.thresholds[place] for place in places)
    count = replace(calibration.count, exits=tuple(exits[place] for place in places))
    return tuple(chosen[place] for place in places), Calibration(thresholds, count)


def disjoint(cascades: Sequence[CandidateCascade]) -> list[CandidateCascade]:
    """Return the first cascade and the best others of which no two share a cache, so that one is
    left if another fails early."""
    chosen: list[CandidateCascade] = []
    for cascade in cascades:
        if all(set(cascade.chosen).isdisjoint(one.chosen) for one in chosen):
            chosen.append(cascade)
    return chosen[:SEQUENCES]


def _fastest(cascades: Iterable[CandidateCascade]) -> list[CandidateCascade]:
    return sorted(cascades, key=lambda one: one.latency_s)


def saving_of(
    problem: CompositionProblem, chosen: Sequence[int]
) -> Callable[[CascadeCount], float]:
    """Return a function from counts of the cascade to the mean seconds that an input saves."""
    gains_s = [problem.saved_s(index) for index in chosen]
    overheads_s = [problem.candidates[index].overhead_s for index in chosen]
    return lambda count: count.saving_s(gains_s, overheads_s)


def in_turn(problem: CompositionProblem, chosen: Collection[int]) -> tuple[int, ...]:
    """Return the exits in the order of their points."""
    return tuple(sorted(chosen, key=lambda index: (*problem.candidates[index].place, index)))
