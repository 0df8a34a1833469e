"""Chains of caches that are worth a race: what calibration will come to, and in what time.

Hits at one strictness say little of what can be *proved*: of three exits calibration may prove
one, and not the best one. So single caches and pairs are looked at, each by what calibration
proves of tuning rows that are drawn many times.
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
    count_cascade,
    in_order,
    in_sequence,
    propose,
    propose_for,
    scaled,
    tested,
)

MOST_FINALISTS = 4

COMBINED = 6
"""The single caches of least latency whose pairs are looked at."""

REHEARSED = 10
"""Chains, the most promising ones, of which calibration is tried on tuning rows."""

DRAWS = 10
"""Of held-out rows in such a trial, from either half of the tuning rows."""

SEQUENCES = 3
"""Chains that held-out rows test, sharing the error: the worst of many splits gains more than the
others lose by it."""

STRICTNESS = tuple(step / 40 for step in range(41))
"""As in calibration, in smaller steps: of one that is not proved less is lost."""


@dataclass(frozen=True, slots=True)
class Finalist:
    """A chain, indices of those tried, and thresholds like those that calibration will find.

    ``latency_s``: what is expected with them on average.
    """

    synchronous: bool
    chosen: tuple[int, ...]
    thresholds: tuple[float, ...]
    latency_s: float


def finalists(
    problems: Mapping[bool, CompositionProblem],
    tried: Sequence[Tried],
    settings: ExplorationSettings,
) -> list[Finalist]:
    """Those of least expected latency, of each way of looking up one at least; none is slower than
    the model."""
    ways = [
        Composer(problem, synchronous, tried, settings.promise).chains()
        for synchronous, problem in problems.items()
    ]
    best = [way[0] for way in ways if way]
    others = sorted((one for way in ways for one in way[1:]), key=lambda one: one.latency_s)
    return [*best, *others[: MOST_FINALISTS - len(best)]]


@dataclass(frozen=True, slots=True)
class Composer:
    """Chains for one way of looking up and one promise, judged on tuning rows alone."""

    problem: CompositionProblem
    synchronous: bool
    tried: Sequence[Tried]
    promise: Promise

    def chains(self, *more: tuple[int, ...]) -> list[Finalist]:
        """The most promising ones, those of ``more`` among them, the fastest first; all are faster
        than the model."""
        found: dict[tuple[int, ...], Finalist] = {}
        candidates = self.problem.candidates
        # beside the model, in the lane, another whole one would take its processors
        whole = [i for i, one in enumerate(candidates) if one.is_whole and self.synchronous]
        for index, one in enumerate(candidates):
            if not one.is_whole or (one.point == 0 and self.synchronous):
                self._look_at((index,), found)
        singles = self._of_predictors(one.chosen[0] for one in _fastest(found.values()))
        for pair in itertools.combinations(singles, 2):
            self._look_at(in_turn(self.problem, pair), found)
        for chain in [one.chosen for one in _fastest(found.values())[:COMBINED]]:
            last = candidates[chain[-1]]
            for index in whole:  # what all of these miss
                if not last.is_whole and candidates[index].point == last.point:
                    self._look_at((*chain, index), found)
        promising = {one.chosen: one for one in _fastest(found.values())[:REHEARSED]}
        for chain in more:
            self._look_at(chain, promising)
        rehearsed = map(self.rehearsed, promising.values())
        return _fastest(one for one in rehearsed if one.latency_s < self.problem.total_s)

    def _of_predictors(self, ranked: Iterable[int]) -> list[int]:
        """The first ``COMBINED``, each of another predictor."""
        kept: dict[tuple[int, str], int] = {}
        for index in ranked:
            one = self.problem.candidates[index]
            kept.setdefault((one.point, one.variant), index)
        return list(kept.values())[:COMBINED]

    def calibrated(
        self, chains: Sequence[Finalist], most_late_s: float = math.inf
    ) -> tuple[tuple[int, ...], Calibration] | None:
        """The most that held-out rows prove of one of ``chains``: its exits that answer, with
        thresholds and counts. Each is tested in a sequence of its own; all share the error.

        One that delays inputs which it misses by more than ``most_late_s`` is taken where no other
        is proved.
        """
        best: tuple[tuple[bool, float], tuple[int, ...], Calibration] | None = None
        promise = self._shared(len(chains))
        for one in chains:
            held_out = in_order([self.tried[index].held_out for index in one.chosen])
            found = tested(
                self._sequence(one.chosen, self._tuning(one.chosen), promise), held_out, promise
            )
            if found is not None:
                is_on_time = self.problem.burden_s(one.chosen) <= most_late_s
                worth = is_on_time, saving_of(self.problem, one.chosen)(found.count)
                if best is None or worth > best[0]:
                    best = worth, one.chosen, found
        if best is None:
            return None
        _, chain, found = best
        return _answering(chain, found)

    def _shared(self, sequences: int) -> Promise:
        """What each of so many sequences has to prove, so that all of them hold with the promise's
        confidence."""
        error = (1 - self.promise.confidence) / max(sequences, 1)
        return replace(self.promise, confidence=1 - error)

    def _sequence(
        self, chain: Sequence[int], tuning: Scored, promise: Promise
    ) -> list[tuple[float, ...]]:
        """Thresholds of ``chain`` in testing order."""
        proposals = propose(tuning, promise.accuracy, STRICTNESS)
        saving_s = saving_of(self.problem, chain)
        return in_sequence(proposals, tuning, self._held_out_rows, promise, saving_s)

    def _look_at(self, chain: Sequence[int], found: dict[tuple[int, ...], Finalist]) -> None:
        one = self.provable(chain)
        if one is not None and one.latency_s < self.problem.total_s:
            before = found.get(one.chosen, one)
            found[one.chosen] = min(one, before, key=lambda either: either.latency_s)

    def provable(self, chain: Sequence[int]) -> Finalist | None:
        """The most that the held-out rows would prove if all went as with the tuning rows; only
        exits that answer then."""
        if not chain or not self.problem.fits(chain):
            return None
        tuning, saving_s = self._tuning(chain), saving_of(self.problem, chain)
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
        kept, answering = _answering(chain, best)
        return Finalist(self.synchronous, kept, answering.thresholds, latency_s)

    def rehearsed(self, one: Finalist) -> Finalist:
        """With what calibration proves on average, where one half of the tuning rows proposes and
        held-out rows are drawn from the other one."""
        tuning, saving_s = self._tuning(one.chosen), saving_of(self.problem, one.chosen)
        rows = tuning.scores.shape[1]
        random = np.random.default_rng(rows)
        halves = np.array_split(random.permutation(rows), 2)
        promise = self._shared(SEQUENCES)
        saved_s = []
        for proposing, proving in (halves, halves[::-1]):
            ours, theirs = tuning.take(proposing), tuning.take(proving)
            sequence = self._sequence(one.chosen, ours, promise)
            for _ in range(DRAWS):
                drawn = theirs.take(random.integers(len(proving), size=self._held_out_rows))
                found = tested(sequence, drawn, promise)
                saved_s.append(0.0 if found is None else saving_s(found.count))
        mean_s = statistics.mean(saved_s)
        likely = min(
            propose_for(range(len(one.chosen)), tuning, self.promise.accuracy),
            key=lambda thresholds: abs(saving_s(count_cascade(tuning, thresholds)) - mean_s),
        )
        return replace(one, thresholds=likely, latency_s=self.problem.total_s - mean_s)

    @property
    def _held_out_rows(self) -> int:
        return self.tried[0].held_out.scores.shape[0]

    def _tuning(self, chain: Sequence[int]) -> Scored:
        return in_order([self.tried[index].tune for index in chain])


def _answering(chain: Sequence[int], found: Calibration) -> tuple[tuple[int, ...], Calibration]:
    """The exits of ``chain`` that answer anything, with their thresholds and counts."""
    places = [place for place, one in enumerate(found.count.exits) if one.answered]
    exits = tuple(found.count.exits[place] for place in places)
    thresholds = tuple(found.thresholds[place] for place in places)
    count = replace(found.count, exits=exits)
    return tuple(chain[place] for place in places), Calibration(thresholds, count)


def apart(chains: Sequence[Finalist]) -> list[Finalist]:
    """The first, and the best ones of which no two share a cache: where one fails early, there is
    another."""
    kept: list[Finalist] = []
    for chain in chains:
        if all(set(chain.chosen).isdisjoint(one.chosen) for one in kept):
            kept.append(chain)
    return kept[:SEQUENCES]


def _fastest(found: Iterable[Finalist]) -> list[Finalist]:
    return sorted(found, key=lambda one: one.latency_s)


def saving_of(
    problem: CompositionProblem, chain: Sequence[int]
) -> Callable[[CascadeCount], float]:
    """Seconds that such counts of ``chain`` save, of an input on average."""
    candidates = [problem.candidates[index] for index in chain]
    gains_s = [problem.total_s - problem.reach_s[one.point] - one.lookup_s for one in candidates]
    burdens_s = [one.burden_s for one in candidates]
    return lambda count: count.saving_s(gains_s, burdens_s)


def in_turn(problem: CompositionProblem, chain: Collection[int]) -> tuple[int, ...]:
    """In the order of their points."""
    return tuple(sorted(chain, key=lambda index: (*problem.candidates[index].place, index)))
