"""The benchmark's judgement of the promise, and what it composes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from brisk.exits.cascade import Level
from brisk.exits.exploration import ExplorationSettings
from brisk.exits.exploration.composition import (
    CandidateExit,
    CompositionProblem,
    Outcomes,
    Tried,
    composition_problem,
)
from brisk.exits.exploration.measuring import BaseProfile, EvaluationCost
from brisk.exits.exploration.selection import Chosen
from brisk.exits.exploration.settings import EvaluationMode
from brisk.exits.guarantee.calibration import (
    CascadeCount,
    ExitCount,
    Scored,
    count_cascade,
    in_order,
)
from brisk.exits.model_graph import ExitPoint
from brisk_bench.exits import promise as exit_promise
from brisk_bench.exits.compositions import (
    ALL,
    FIGURE_24,
    FIGURE_25,
    composed,
    figure_checks,
    variant_sets,
)
from brisk_bench.exits.promise import (
    broken_cascades,
    broken_exits,
    exact_interval,
    judge,
    split_often,
)
from brisk_bench.harness.report import Check
from support.published_runs import readme_shows

POOL, TUNE, CALIBRATE = 6000, 600, 800


def pool_of(exits: int, seed: int) -> list[Scored]:
    """Scores that say how likely a prediction is right; later exits know more."""
    random = np.random.default_rng(seed)
    hardness = random.uniform(0, 1, POOL)
    looked = []
    for index in range(exits):
        known = np.clip(1.3 + 0.3 * index - hardness, 0.3, 1)
        right = random.uniform(0, 1, POOL) < known
        looked.append(Scored(known.astype(np.float32), right, np.ones(POOL, bool)))
    return looked


SETTINGS = ExplorationSettings(accuracy=0.95, evaluation_mode=EvaluationMode.SYNCHRONOUS)


def split(pool: Sequence[Scored], splits: int) -> dict[float, list[CascadeCount]]:
    """Exits at a third and two thirds of a model of 3 ms, of which an evaluation takes 20 us."""
    points = [ExitPoint(10 * (index + 1), f"hidden{index}") for index in range(len(pool))]
    reach_s = {0: 0.0, **{point.position: 1e-3 * (i + 1) for i, point in enumerate(points)}}
    profile = BaseProfile(reach_s, 3e-3, 3e-3)
    tried = [
        Tried(index, "Pool(4096)", 2e-5, b"", 1000, (4,), one, one)
        for index, one in enumerate(pool)
    ]

    def problems_of(seen: Sequence[Tried]) -> dict[bool, CompositionProblem]:
        cost = EvaluationCost(0.0, 0.0)
        return {True: composition_problem(seen, points, cost, profile, SETTINGS, True)}

    return split_often(tried, problems_of, SETTINGS, pool, (TUNE, CALIBRATE), splits)


def test_the_product_s_procedure_breaks_its_promise_in_few_splits() -> None:
    pool = pool_of(2, seed=0)
    found = split(pool, splits=6)
    counts = found[0.95]
    assert len(counts) > 3
    assert exact_interval(broken_cascades(0.95, counts), 6)[0] <= 0.05
    assert set(found) == {0.95, 0.98, 0.99, 0.995}
    for count in counts:
        wrong = sum(one.answered - one.right for one in count.exits)
        assert 0 < wrong / count.inputs < 0.06


def test_a_procedure_that_proves_nothing_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers all that the first exit is offered, in the judged rows and in the others."""
    seen: list[tuple[int, int]] = []

    def careless(problems: Any, tried: Sequence[Tried], settings: Any, fastest: Any) -> Chosen:
        one = tried[0]
        seen.append((len(one.tune.scores), len(one.held_out.scores)))
        count = count_cascade(in_order([one.held_out]), (0.0,))
        return Chosen(problems[True], True, (0,), 1e-3, (Level(0.95, (0.0,), count),))

    monkeypatch.setattr(exit_promise, "decide", careless)
    pool = pool_of(2, seed=0)
    counts = split(pool, splits=10)[0.95]
    assert seen == [(TUNE, CALIBRATE)] * 10
    assert broken_cascades(0.95, counts) == broken_exits(0.95, counts) == len(counts) == 10
    checks = judge("model", 0.95, 0.95, counts, 10)
    assert [check.ok for check in checks] == [False, False]


def test_a_split_is_judged_by_rows_that_it_has_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.arange(POOL, dtype=np.float32)
    pool = [Scored(numbers, np.ones(POOL, bool), np.ones(POOL, bool))]
    used: list[set[float]] = []
    judged: list[set[float]] = []

    def noting(problems: Any, tried: Sequence[Tried], settings: Any, fastest: Any) -> Chosen:
        rows = np.concatenate([tried[0].tune.scores, tried[0].held_out.scores])
        used.append(set(rows.tolist()))
        count = count_cascade(in_order([tried[0].held_out]), (0.0,))
        return Chosen(problems[True], True, (0,), 1e-3, (Level(0.95, (0.0,), count),))

    def counting(scored: Any, thresholds: Any) -> Any:
        judged.append(set(scored.scores[0].tolist()))
        return count_cascade(scored, thresholds)

    monkeypatch.setattr(exit_promise, "decide", noting)
    monkeypatch.setattr(exit_promise, "count_cascade", counting)
    split(pool, splits=3)
    for ours, theirs in zip(used, judged, strict=True):
        assert not ours & theirs
        assert ours | theirs == set(numbers.tolist())


def test_even_the_upper_end_of_the_exact_interval_of_broken_splits_keeps_the_promise() -> None:
    def judged(broken: int, splits: int = 100) -> Check:
        counts = [
            CascadeCount(100, (ExitCount(10, 10),), wrong_anywhere=4 if number < broken else 3)
            for number in range(splits)
        ]
        return judge("model", 0.97, 0.95, counts, splits)[0]

    assert [judged(broken).ok for broken in (0, 1, 5, 30)] == [True, False, False, False]
    assert [judged(broken).value for broken in (0, 1)] == [3.622, 5.446]
    assert judged(0).expected == "<= 5"
    assert not judged(0, splits=20).ok, "20 splits prove nothing"
    counts = [CascadeCount(100, (ExitCount(10, 10),), wrong_anywhere=0)] * 100
    checks = judge("resnet50 on Fashion-MNIST", 0.97, 0.95, counts, 100)
    assert readme_shows("exits-promise", checks) == [checks[0]]
    assert exact_interval(5, 100) == pytest.approx((0.0164, 0.1128), abs=1e-3)
    assert not judge("model", 0.97, 0.95, [], 100), "nothing was promised"


def problem_of(names: Sequence[str]) -> CompositionProblem:
    random = np.random.default_rng(0)
    hits = random.uniform(0, 1, (len(names), 200)) < np.linspace(0.3, 0.9, len(names))[:, None]
    candidates = tuple(
        CandidateExit(index % 2, name, float(hits[index].mean()), 1.0, 0.0, 100, 1e-5)
        for index, name in enumerate(names)
    )
    return CompositionProblem(
        (1e-3, 2e-3), 4e-3, candidates, 0.97, outcomes=Outcomes(hits, np.ones_like(hits))
    )


def test_every_set_of_variants_and_every_alpha_composes_a_chain_of_its_own_numbers() -> None:
    names = ("FC(512)", "Pool(8192)", "Pool(4096)", "Conv(3,1)", "Conv2(3,2)")
    problem = problem_of(names)
    sets = variant_sets(problem)
    assert list(sets)[:4] == [ALL, "FC only", "Pool only", "Conv only"]
    assert sets["Conv only"] == {"Conv(3,1)", "Conv2(3,2)"}, "a family, however deep"
    ways = composed(problem)
    for (figure, way), chain in ways.items():
        allowed = sets[way] if figure == FIGURE_24 else sets[ALL]
        assert {names[index] for index in chain} <= allowed, way
    assert {way for figure, way in ways if figure == FIGURE_24} == set(sets)
    assert sum(figure == FIGURE_25 and "α 0" in way for figure, way in ways) == 10
    assert ways[FIGURE_24, "FC(512) only"] == (0,)


def test_figures_are_judged_by_what_was_measured() -> None:
    sides = {
        f"{FIGURE_24}: {ALL}": 1.0,
        f"{FIGURE_24}: FC only": 2.0,
        f"{FIGURE_24}: Pool only": 0.8,
        f"{FIGURE_25}: least expected latency": 1.0,
        f"{FIGURE_25}: greedy by hit rate": 1.2,
    }
    rows = [{"side": side, "mean_ms": mean_ms} for side, mean_ms in sides.items()]
    found = figure_checks("model", rows)
    assert [check.ok for check in found] == [False, True]
    assert [check.value for check in found] == pytest.approx([1.25, 1 / 1.2])
