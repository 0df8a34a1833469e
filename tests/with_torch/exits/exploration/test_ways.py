"""The cascades that are benchmarked, and the one of them that is taken."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

from brisk.exits.exploration.composition import CandidateExit, CompositionProblem, Outcomes, Tried
from brisk.exits.exploration.measuring import Verification
from brisk.exits.exploration.selection import choose, winner
from brisk.exits.exploration.settings import ExplorationSettings
from brisk.exits.exploration.shortlist import (
    MOST_CANDIDATES,
    CandidateCascade,
    Composer,
    candidate_cascades,
    disjoint,
)
from brisk.exits.exploration.study import noticed_at
from brisk.exits.guarantee.calibration import Scored, count_cascade, in_order
from brisk.exits.model_graph import ExitPoint

SETTINGS = ExplorationSettings(accuracy=0.97, confidence=0.95)
ROWS = 2000


def benchmarked(synchronous: bool, late_s: float, mean_s: float, hit_rate: float = 0.6):
    """A candidate, and how it did against a model that takes a second."""
    return (
        CandidateCascade(synchronous, (0,), (0.5,), mean_s),
        Verification(1.0, mean_s, hit_rate, late_s),
    )


def test_a_way_on_which_misses_are_on_time_goes_before_a_faster_one() -> None:
    results = [benchmarked(True, 0.03, 0.5), benchmarked(False, 0.01, 0.6)]
    assert not winner(results, 0.02).synchronous
    assert winner(results, None).synchronous


def test_the_mean_alone_counts_where_hardly_an_input_is_missed() -> None:
    results = [
        benchmarked(True, 0.03, 0.2, hit_rate=0.995),
        benchmarked(False, 0.01, 0.3, hit_rate=0.995),
    ]
    assert winner(results, 0.02).synchronous


def test_the_mean_alone_counts_where_none_is_on_time_and_faster() -> None:
    assert winner([benchmarked(True, 0.03, 0.5), benchmarked(False, 0.05, 0.6)], 0.02).synchronous
    assert winner([benchmarked(True, 0.03, 0.5), benchmarked(False, 0.01, 1.1)], 0.02).synchronous


def tried(point: int, hits: float, wrong: float, seed: int) -> Tried:
    """A cache that scores ``hits`` of the inputs above a half; a share ``wrong`` of these is."""
    random = np.random.default_rng(seed)

    def looked() -> Scored:
        hit = np.arange(ROWS) % 100 < hits * 100
        scores = np.where(hit, random.uniform(0.5, 1, ROWS), random.uniform(0, 0.5, ROWS))
        right = np.where(hit, random.uniform(size=ROWS) >= wrong, random.uniform(size=ROWS) < 0.5)
        return Scored(scores.astype(np.float32), right, np.ones(ROWS, bool))

    return Tried(point, "Pool(4096)", 0.01, b"", 100, (4,), looked(), looked())


def problem_of(caches: list[Tried], evaluation_s: float, overhead_s: float) -> CompositionProblem:
    """Points are a tenth of the model's second apart."""
    return CompositionProblem(
        reach_s=tuple(0.1 * (point + 1) for point in range(5)),
        total_s=1.0,
        candidates=tuple(
            CandidateExit(one.point, one.variant, 0.5, 0.97, evaluation_s, 100, overhead_s)
            for one in caches
        ),
        accuracy=SETTINGS.accuracy,
        outcomes=Outcomes(
            np.array([one.tune.scores >= 0.5 for one in caches]),
            np.array([one.tune.right for one in caches]),
        ),
    )


def ways(caches: list[Tried]) -> dict[bool, CompositionProblem]:
    return {True: problem_of(caches, 0.0, 0.02), False: problem_of(caches, 0.1, 0.01)}


def test_what_can_be_proved_goes_before_what_hits_more() -> None:
    """The first cache hits most early, and is right in 96 %: only a part of that can be proved."""
    bold, sure = tried(0, 0.8, 0.04, 1), tried(2, 0.7, 0.002, 2)
    candidates = candidate_cascades(ways([bold, sure]), [bold, sure], SETTINGS)
    assert candidates[0].chosen == (1,) or candidates[0].chosen == (0, 1)
    assert 1 in candidates[0].chosen


def test_the_fastest_come_first_and_each_way_is_there() -> None:
    caches = [tried(point, 0.3 + 0.1 * point, 0.002, point) for point in range(4)]
    candidates = candidate_cascades(ways(caches), caches, SETTINGS)
    assert 2 <= len(candidates) <= MOST_CANDIDATES
    assert {one.synchronous for one in candidates[:2]} == {True, False}
    assert all(one.latency_s < 1.0 for one in candidates)
    best = {one.synchronous: one.latency_s for one in reversed(candidates)}
    assert best[True] < best[False], "a hand-over costs a tenth here"


def test_no_single_cache_or_pair_is_expected_to_be_faster_than_the_first() -> None:
    caches = [tried(point, 0.3 + 0.1 * point, 0.005 * point, point) for point in range(4)]
    composer = Composer(ways(caches)[True], True, caches, SETTINGS.promise)
    best = composer.cascades()[0]
    cascades = [(i,) for i in range(4)] + list(itertools.combinations(range(4), 2))
    for cascade in cascades:
        one = composer.provable(cascade)
        if one is not None:
            assert best.latency_s <= composer.bootstrapped(one).latency_s + 1e-9


def test_held_out_rows_have_no_say_in_what_is_benchmarked() -> None:
    caches = [tried(point, 0.3 + 0.1 * point, 0.01, point) for point in range(4)]
    random = np.random.default_rng(9)
    other = [
        dataclasses.replace(
            one,
            held_out=Scored(
                random.uniform(size=ROWS).astype(np.float32),
                random.uniform(size=ROWS) < 0.5,
                np.ones(ROWS, bool),
            ),
        )
        for one in caches
    ]
    assert candidate_cascades(ways(caches), caches, SETTINGS) == candidate_cascades(
        ways(other), other, SETTINGS
    )


def test_nothing_is_benchmarked_that_cannot_be_proved_or_is_slower() -> None:
    hopeless = tried(0, 0.8, 0.3, 1)
    assert candidate_cascades(ways([hopeless]), [hopeless], SETTINGS) == []
    dear = tried(0, 0.3, 0.0, 1)
    assert candidate_cascades({True: problem_of([dear], 0.0, 0.4)}, [dear], SETTINGS) == []


def test_cascades_that_are_tested_share_no_cache() -> None:
    cascades = [
        CandidateCascade(True, chosen, (0.5,) * len(chosen), 0.1)
        for chosen in ((0, 2), (0,), (2, 3), (1, 3), (1,), (4,), (5,))
    ]
    assert [one.chosen for one in disjoint(cascades)] == [(0, 2), (1, 3), (4,)]
    assert disjoint(cascades[:3]) == cascades[:1]


def test_where_held_out_rows_refute_the_best_cascade_another_one_is_proved() -> None:
    early, late = tried(0, 0.8, 0.002, 1), tried(3, 0.6, 0.0, 2)
    refuted = dataclasses.replace(early, held_out=tried(0, 0.8, 0.1, 3).held_out)
    caches = [refuted, late]
    composer = Composer(problem_of(caches, 0.0, 0.02), True, caches, SETTINGS.promise)
    cascades = [
        CandidateCascade(True, (0,), (0.5,), 0.3),
        CandidateCascade(True, (1,), (0.5,), 0.6),
    ]
    assert composer.calibrated(cascades[:1]) is None
    calibrated = composer.calibrated(cascades)
    assert calibrated is not None
    assert calibrated[0] == (1,)


def test_an_exit_that_only_rejects_held_out_rows_stays_for_what_it_keeps_from_later_ones() -> None:
    """It answers a few tuning rows; without it the next exit would answer rows that no count of
    its proof has."""
    hits, strange = np.arange(ROWS) % 2 == 0, np.arange(ROWS) % 50 == 0
    everything = np.ones(ROWS, bool)
    few = (np.arange(ROWS) % 40 == 1).astype(np.float32)
    early, late = tried(0, 0.0, 0.0, 1), tried(3, 0.0, 0.0, 2)
    answering = Scored(hits.astype(np.float32), everything, everything)
    early = dataclasses.replace(
        early,
        tune=Scored(few, everything, everything),
        held_out=Scored(np.zeros_like(few), everything, ~strange),
    )
    late = dataclasses.replace(late, tune=answering, held_out=answering)
    caches = [early, late]
    composer = Composer(problem_of(caches, 0.0, 0.0), True, caches, SETTINGS.promise)
    calibrated = composer.calibrated([CandidateCascade(True, (0, 1), (0.5, 0.5), 0.3)])
    assert calibrated is not None
    chosen, proof = calibrated
    assert sum(one.answered for one in proof.count.exits) == 0.48 * ROWS
    served = in_order([caches[index].held_out for index in chosen])
    assert count_cascade(served, proof.thresholds) == proof.count


def test_cascades_tested_together_share_the_error() -> None:
    """Answers of 8 % without a mistake prove 97 % with 95 %, and not with 98.3 % too."""
    few = [tried(point, 0.0, 0.0, point) for point in range(3)]
    hits = np.arange(ROWS) < 110
    for index, one in enumerate(few):
        looked = Scored(hits.astype(np.float32), hits, np.ones(ROWS, bool))
        few[index] = dataclasses.replace(one, tune=looked, held_out=looked)
    composer = Composer(problem_of(few, 0.0, 0.001), True, few, SETTINGS.promise)
    cascades = [CandidateCascade(True, (index,), (0.5,), 0.9) for index in range(3)]
    assert composer.calibrated(cascades[:1]) is not None
    assert composer.calibrated(cascades) is None


def test_a_stricter_promise_may_have_a_cache_of_its_own() -> None:
    """97 % is proved early; 99 % only by the later cache, which is off for 97 %."""
    early, late = tried(0, 0.8, 0.012, 1), tried(3, 0.8, 0.0, 2)
    problem = problem_of([early, late], 0.0, 0.02)
    first = Composer(problem, True, [early, late], SETTINGS.promise).cascades()[0]
    assert first.chosen == (0,)
    chosen = choose(problem, first, [early, late], SETTINGS)
    assert not isinstance(chosen, str)
    levels = {level.accuracy: level for level in chosen.levels}
    assert chosen.tried == (0, 1)
    assert np.isinf(levels[0.97].thresholds[1])
    assert levels[0.97].count.exits[0].answered > 0.5 * ROWS
    assert levels[0.99].count.exits[1].answered > 0.5 * ROWS


def test_a_stricter_promise_is_proved_of_whichever_cascade_has_proved_the_first() -> None:
    """99 % takes 408 answers without a mistake where three cascades are tried, and 517 where the
    same rows have chosen before which these are."""
    hits = np.arange(ROWS) < 430
    looked = Scored(hits.astype(np.float32), hits, np.ones(ROWS, bool))
    cache = dataclasses.replace(tried(0, 0.0, 0.0, 1), tune=looked, held_out=looked)
    problem = problem_of([cache], 0.0, 0.001)
    chosen = choose(problem, CandidateCascade(True, (0,), (0.5,), 0.9), [cache], SETTINGS)
    assert not isinstance(chosen, str)
    assert [level.accuracy for level in chosen.levels] == [0.97, 0.98]


def of_stricter_promise(early_overhead_s: float, late: Tried) -> tuple[int, ...]:
    """The caches that answer at 99 %, of two, the later one 1 % of the model's time."""
    early = tried(0, 0.8, 0.0, 1)
    problem = problem_of([early, late], 0.0, 0.01)
    slow = dataclasses.replace(problem.candidates[0], overhead_s=early_overhead_s)
    problem = dataclasses.replace(problem, candidates=(slow, problem.candidates[1]))
    candidate = CandidateCascade(True, (0,), (0.5,), 0.3)
    chosen = choose(problem, candidate, [early, late], SETTINGS)
    assert not isinstance(chosen, str)
    (level,) = (level for level in chosen.levels if level.accuracy == 0.99)
    return tuple(
        index for index, one in zip(chosen.tried, level.count.exits, strict=True) if one.answered
    )


def test_a_stricter_promise_takes_a_cache_that_is_on_time_for_what_it_misses() -> None:
    late = tried(3, 0.8, 0.0, 2)
    assert of_stricter_promise(0.02, late) == (0,)
    assert of_stricter_promise(0.03, late) == (1,)
    refuted = dataclasses.replace(late, held_out=tried(3, 0.8, 0.1, 3).held_out)
    assert of_stricter_promise(0.03, refuted) == (0,)


def test_the_exit_thread_is_read_at_the_first_boundary_where_it_will_be_done() -> None:
    points = {position: ExitPoint(position, f"v{position}") for position in (3, 5, 8)}
    reach_s = {point: position / 10 for position, point in points.items()}
    assert noticed_at(points[3], 0.2, reach_s) == "v5"
    assert noticed_at(points[3], 0.21, reach_s) == "v8"
    assert noticed_at(points[5], 0.4, reach_s) is None
