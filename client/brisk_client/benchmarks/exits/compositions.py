"""Every variant of predictor at every point, and what ways of composing them come to (GATI, 7).

The paper's six variants are trained at some boundaries, those that no composition would take
among them. Each is measured by itself. Then chains that are composed of all or some of them
(Fig. 24), by each objective and each α of the paper's score (Fig. 25), serve inputs that none of
them has seen, in turns with the bare model; what composition expected stands beside it. Thresholds
are composition's, of tuning rows, for these chains are compared, not promised.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from brisk.exits.cascade import Cascade
from brisk.exits.composition import (
    ALPHAS,
    CompositionProblem,
    compose_by_expected_latency,
    compose_by_hit_rate,
    compose_by_latency_gain,
    compose_by_score,
    compose_with_alpha,
    expect_counted,
)
from brisk.exits.exploration import Exploration, ExplorationSettings
from brisk.exits.exploration.problem import composed_threshold
from brisk.exits.exploration.settings import LookUps
from brisk.exits.exploration.shortlist import Finalist
from brisk.exits.guarantee.calibration import threshold_for
from brisk.exits.learning.settings import PredictorSettings
from brisk.exits.variants import PAPER
from brisk_client.benchmarks.exits.data import ExitCase
from brisk_client.benchmarks.exits.promise import look_through
from brisk_client.benchmarks.exits.runs import BARE, ExitBench, Version
from brisk_client.report import Check, check_limit

POINTS = {False: 3, True: 2}
EPOCHS = {False: 8, True: 2}
"""By whether it has to be quick. The product's 4 to 40 epochs take an FC(1024) in front of 32,768
numbers half an hour."""

SAME = 0.05
"""Share by which means of the same chain differ from run to run; the paper's gain of composing by
an integer program is as much."""

ALL = "all variants"
EXACT = "least expected latency"
FIGURE_24, FIGURE_25 = "Fig. 24", "Fig. 25"

Chain = tuple[int, ...]


def composition_rows(
    case: ExitCase, accuracy: float, bench: ExitBench, quick: bool
) -> tuple[list[dict[str, Any]], list[Check]]:
    """Rows of the variants, then of the chains."""
    names = tuple(one.name for one in PAPER)
    settings = ExplorationSettings(
        accuracy=accuracy,
        points=POINTS[quick],
        variants=names,
        look_ups=LookUps.SYNCHRONOUS,
        jobs=2,
        predictor=PredictorSettings(epochs=EPOCHS[quick]),
        trains_all=True,
    )
    found = case.explore(settings, f"variants-{EPOCHS[quick]}")
    rows = list(_variant_rows(case, found, accuracy))
    trained = {row["variant"] for row in rows}
    checks = [
        Check(
            f"{case.name}: the paper's variants that are trained and measured",
            len(trained),
            len(names),
            trained == set(names),
        )
    ]
    chains = _chain_rows(case, found, settings, bench, quick)
    return rows + chains, checks + figure_checks(case.name, chains)


def figure_checks(label: str, rows: Sequence[Mapping[str, Any]]) -> list[Check]:
    """What the paper's figures say, of the rows' measured means."""
    mean_ms = {row["side"]: row["mean_ms"] for row in rows}
    ours, exact = f"{FIGURE_24}: {ALL}", f"{FIGURE_25}: {EXACT}"
    fewer = [side for side in mean_ms if side.startswith(FIGURE_24) and side != ours]
    greedy = [side for side in mean_ms if side.startswith(f"{FIGURE_25}: greedy")]
    checks = []
    for side, others in ((ours, fewer), (exact, greedy)):
        ratio = mean_ms[side] / min(mean_ms[other] for other in others)
        text = f"{label}, {side}: mean over that of the fastest of {len(others)} others"
        checks.append(check_limit(text, ratio, "<=", 1 + SAME))
    return checks


def _variant_rows(case: ExitCase, found: Exploration, accuracy: float) -> Iterator[dict[str, Any]]:
    """At the least threshold that keeps ``accuracy`` on tuning rows; counted on the evaluation."""
    assembly = found.studied.assembly
    looked = look_through(found.studied, case.evaluation)
    for one, seen in zip(assembly.tried, looked, strict=True):
        hits = seen.scores >= threshold_for(one.tune.scores, one.tune.right, accuracy)
        yield {
            "model": case.name,
            "side": f"{one.variant}@{assembly.points[one.point].position}",
            "variant": one.variant,
            "behind_share": found.problem.reach_s[one.point] / found.problem.total_s,
            "right": float(seen.right.mean()),
            "early": float(hits.mean()),
            "agreement_of_early": float(seen.right[hits].mean()) if hits.any() else 1.0,
            "look_up_us": one.lookup_s * 1e6,
            "memory_kb": one.memory_bytes / 1e3,
        }


def composed(problem: CompositionProblem) -> dict[tuple[str, str], Chain]:
    """Chains by figure and way; empty where composition takes none."""
    ways: dict[tuple[str, str], Chain] = {}
    for name, kept in variant_sets(problem).items():
        only, numbers = _only(problem, kept)
        chosen = compose_by_expected_latency(only).chosen
        ways[FIGURE_24, name] = tuple(numbers[index] for index in chosen)
    ways[FIGURE_25, EXACT] = compose_by_expected_latency(problem).chosen
    ways[FIGURE_25, "score, best α"] = compose_by_score(problem)[1].chosen
    for alpha in ALPHAS:
        ways[FIGURE_25, f"score, α {alpha:.1f}"] = compose_with_alpha(problem, alpha).chosen
    ways[FIGURE_25, "greedy by latency gain"] = compose_by_latency_gain(problem).chosen
    ways[FIGURE_25, "greedy by hit rate"] = compose_by_hit_rate(problem).chosen
    return ways


def variant_sets(problem: CompositionProblem) -> dict[str, frozenset[str]]:
    """All variants, those of one architecture, each alone."""
    names = list(dict.fromkeys(one.variant for one in problem.candidates))
    sets = {ALL: frozenset(names)}
    for kind in dict.fromkeys(name.partition("(")[0] for name in names):
        sets[f"{kind} only"] = frozenset(n for n in names if n.startswith(f"{kind}("))
    return {**sets, **{f"{name} only": frozenset({name}) for name in names}}


def _chain_rows(
    case: ExitCase,
    found: Exploration,
    settings: ExplorationSettings,
    bench: ExitBench,
    quick: bool,
) -> list[dict[str, Any]]:
    """One for each figure and way; a chain that several ways compose is run once."""
    problem = found.problem
    ways = composed(problem)
    cascades = {
        chain: _cascade(found, settings, chain) for chain in dict.fromkeys(ways.values()) if chain
    }
    versions = {str(chain): Version(one, True) for chain, one in cascades.items()}
    sides = bench.measure(versions, case.evaluation, 1, quick)
    rows = []
    for (figure, way), chain in ways.items():
        side = sides[str(chain) if chain else BARE]
        speed = side.speed_columns(sides[BARE])
        expected = expect_counted(problem, chain)
        rows.append(
            {
                "model": case.name,
                "side": f"{figure}: {way}",
                **{name: speed[name] for name in ("mean_ms", "p99_ms", "speed_up")},
                **side.answer_columns(),
                "expected_ms": expected.latency_s * 1e3,
                "expected_agreement": expected.accuracy,
                "exits": ", ".join(exit_.name for exit_ in cascades[chain].exits) if chain else "",
            }
        )
    return rows


def _cascade(found: Exploration, settings: ExplorationSettings, chain: Chain) -> Cascade:
    """The chain at the thresholds at which composition has counted its hits."""
    assembly = found.studied.assembly
    thresholds = tuple(composed_threshold(assembly.tried[index], settings) for index in chain)
    finalist = Finalist(True, chain, thresholds, found.problem.total_s)
    return assembly.unproved(finalist, settings.accuracy)


def _only(
    problem: CompositionProblem, kept: frozenset[str]
) -> tuple[CompositionProblem, Mapping[int, int]]:
    """The problem with candidates of these variants, and their numbers in the whole one."""
    numbers = [i for i, one in enumerate(problem.candidates) if one.variant in kept]
    outcomes = problem.outcomes
    if outcomes is not None:
        rows = np.array(numbers)
        outcomes = dataclasses.replace(
            outcomes, hits=outcomes.hits[rows], right=outcomes.right[rows]
        )
    candidates = tuple(problem.candidates[index] for index in numbers)
    only = dataclasses.replace(problem, candidates=candidates, outcomes=outcomes)
    return only, dict(enumerate(numbers))
