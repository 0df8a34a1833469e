"""Every variant of predictor at every point, and chains by ways of composing them (GATI, 7).

All of the product's variants, the paper's six and two deeper ones, are trained at some boundaries,
those that no composition would take among them. Each is measured by itself. Then chains that are
composed of all or some of them (Fig. 24), by each objective and each α of the paper's score (Fig.
25), serve inputs that none of them has seen, interleaved with the bare model; each row also has
what composition expected. Thresholds are composition's, of tuning rows, since these chains are
compared, not promised.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from brisk.exits.cascade import Cascade
from brisk.exits.exploration import Exploration, ExplorationSettings
from brisk.exits.exploration.composition import CompositionProblem, composed_threshold
from brisk.exits.exploration.settings import EvaluationMode
from brisk.exits.exploration.shortlist import CandidateCascade
from brisk.exits.guarantee.proposals import threshold_for
from brisk.exits.heads.exit_model import Judge
from brisk.exits.heads.predictors import CATALOGUE
from brisk.exits.learning.predictor import PredictorSettings
from brisk_bench.exits.data import ExitCase
from brisk_bench.exits.promise import look_through
from brisk_bench.exits.runs import BARE, ExitBench, Version
from brisk_bench.harness.report import Check, Report, check_limit

POINTS = {False: 3, True: 2}
EPOCHS = {False: 8, True: 2}
"""Epochs by whether the run is quick. The product's 4 to 40 epochs of an FC(1024) that reads
32,768 numbers take half an hour."""

SAME = 0.05
"""Share by which means of the same chain differ from run to run; the paper's gain by an integer
program is as much."""

ALL = "all variants"
EXACT = "least expected latency"
FIGURE_24, FIGURE_25 = "Fig. 24", "Fig. 25"

Chain = tuple[int, ...]

ALPHAS = tuple(step / 10 for step in range(11))


def measure_compositions(
    report: Report, case: ExitCase, accuracy: float, bench: ExitBench, quick: bool
) -> None:
    """Add rows of the variants, then of the chains, and their checks."""
    names = tuple(one.name for one in CATALOGUE)
    settings = ExplorationSettings(
        accuracy=accuracy,
        points=POINTS[quick],
        variants=names,
        judges=(Judge.SELECTOR,),
        evaluation_mode=EvaluationMode.SYNCHRONOUS,
        jobs=2,
        predictor=PredictorSettings(epochs=EPOCHS[quick]),
        trains_all=True,
    )
    exploration = case.explore(settings, f"variants-{EPOCHS[quick]}")
    report.rows += (rows := list(_variant_rows(case, exploration, accuracy)))
    trained = {row["variant"] for row in rows}
    text = f"{case.name}: variants of the product that are trained and measured"
    report.checks.append(Check(text, len(trained), len(names), trained == set(names)))
    chains = _chain_rows(case, exploration, settings, bench, quick)
    report.rows += chains
    report.checks += figure_checks(case.name, chains)


def figure_checks(label: str, rows: Sequence[Mapping[str, Any]]) -> list[Check]:
    """Check what the paper's figures say, on the rows' measured means."""
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
    """Yield a row for each variant, counted on the evaluation.

    Its threshold is the least that keeps ``accuracy`` on tuning rows.
    """
    studied = found.studied
    looked = look_through(studied, case.evaluation)
    for one, evaluation in zip(studied.tried, looked, strict=True):
        hits = evaluation.scores >= threshold_for(one.tune.scores, one.tune.right, accuracy)
        yield {
            "model": case.name,
            "side": f"{one.variant}@{studied.points[one.point].position}",
            "variant": one.variant,
            "behind_share": found.problem.reach_s[one.point] / found.problem.total_s,
            "right": float(evaluation.right.mean()),
            "early": float(hits.mean()),
            "agreement_of_early": float(evaluation.right[hits].mean()) if hits.any() else 1.0,
            "look_up_us": one.evaluation_s * 1e6,
            "memory_kb": one.memory_bytes / 1e3,
        }


def composed(problem: CompositionProblem) -> dict[tuple[str, str], Chain]:
    """Return chains by figure and way; a chain is empty if composition takes no cache."""
    ways: dict[tuple[str, str], Chain] = {}
    for name, variants in variant_sets(problem).items():
        ways[FIGURE_24, name] = compose_exactly(problem, variants)
    ways[FIGURE_25, EXACT] = compose_exactly(problem)
    ways[FIGURE_25, "score, best α"] = compose_by_score(problem)
    for alpha in ALPHAS:
        ways[FIGURE_25, f"score, α {alpha:.1f}"] = compose_with_alpha(problem, alpha)
    for name, merit in MERITS.items():
        ways[FIGURE_25, f"greedy by {name}"] = compose_greedily(problem, merit)
    return ways


def variant_sets(problem: CompositionProblem) -> dict[str, frozenset[str]]:
    """Return sets of variants by name: all, those of each family of architectures, each alone."""
    names = list(dict.fromkeys(one.variant for one in problem.candidates))
    sets = {ALL: frozenset(names)}
    for family in dict.fromkeys(map(_family, names)):
        sets[f"{family} only"] = frozenset(name for name in names if _family(name) == family)
    return {**sets, **{f"{name} only": frozenset({name}) for name in names}}


def _family(variant: str) -> str:
    """Return the family, FC, Pool or Conv, however deep."""
    return variant.partition("(")[0].rstrip("0123456789")


def _chain_rows(
    case: ExitCase,
    found: Exploration,
    settings: ExplorationSettings,
    bench: ExitBench,
    quick: bool,
) -> list[dict[str, Any]]:
    """Return a row for each figure and way; a chain that several ways compose is run once."""
    problem = found.problem
    ways = composed(problem)
    cascades = {
        chain: _cascade(found, settings, chain) for chain in dict.fromkeys(ways.values()) if chain
    }
    versions = {str(chain): Version(one, True) for chain, one in cascades.items()}
    sides = bench.measure(versions, case.evaluation, 1, quick)
    rows = []
    for (figure, way), chain in ways.items():
        columns = sides[str(chain) if chain else BARE].columns(sides[BARE])
        del columns["median_ms"]
        expected = expect(problem, chain)
        rows.append(
            {
                "model": case.name,
                "side": f"{figure}: {way}",
                **columns,
                "expected_ms": expected.latency_s * 1e3,
                "expected_agreement": expected.accuracy,
                "exits": ", ".join(exit_.name for exit_ in cascades[chain].exits) if chain else "",
            }
        )
    return rows


def _cascade(found: Exploration, settings: ExplorationSettings, chain: Chain) -> Cascade:
    """Return the chain at the thresholds at which composition has counted its hits."""
    tried = found.studied.tried
    thresholds = tuple(composed_threshold(tried[index], settings) for index in chain)
    candidate = CandidateCascade(True, chain, thresholds, found.problem.total_s)
    return found.studied.unproved(candidate)


@dataclass(frozen=True, slots=True)
class Expectation:
    """The expected results of a chain.

    ``latency_s``: mean latency (GATI, eq. 10).
    ``accuracy``: agreement with the base model (eq. 7).
    ``answered``: each cache's effective hit rate (eq. 5), in the chain's order.
    """

    latency_s: float
    accuracy: float
    answered: tuple[float, ...]


def expect(problem: CompositionProblem, chain: Chain) -> Expectation:
    """Count a chain's results: an input that a cache answers is gone for all later ones.

    The paper's eq. 5 subtracts the *effective* hit rate of the cache before, which gives the first
    one's hits back to the third; eq. 7 and 10 need all earlier hits subtracted to sum to one.
    """
    waiting = np.ones(problem.outcomes.hits.shape[1], bool)
    latency_s, wrong = problem.total_s, 0.0
    answered = []
    for index in chain:
        candidate = problem.candidates[index]
        hits = problem.outcomes.hits[index] & waiting
        end_s = problem.reach_s[candidate.point] + candidate.evaluation_s
        latency_s += float(waiting.mean()) * candidate.overhead_s
        latency_s += float(hits.mean()) * (end_s - problem.total_s)
        wrong += float((hits & ~problem.outcomes.right[index]).mean())
        answered.append(float(hits.mean()))
        waiting &= ~hits
    return Expectation(latency_s, 1 - wrong, tuple(answered))


def all_chains(problem: CompositionProblem) -> Iterator[Chain]:
    """Yield every choice of at most one candidate a point that fits."""
    at_point: list[list[int | None]] = [[None] for _ in problem.reach_s]
    for index, candidate in enumerate(problem.candidates):
        at_point[candidate.point].append(index)
    for choice in itertools.product(*at_point):
        chain = tuple(index for index in choice if index is not None)
        if problem.fits(chain):
            yield chain


def _fastest(problem: CompositionProblem, chains: Iterator[Chain]) -> Chain:
    """Return the fastest chain that keeps the accuracy; empty if all are slower than the model."""
    expected = ((expect(problem, chain), chain) for chain in chains)
    accurate = [
        (one.latency_s, chain) for one, chain in expected if one.accuracy >= problem.accuracy
    ]
    return min(accurate, default=(problem.total_s, ()))[1]


def compose_exactly(problem: CompositionProblem, kept: frozenset[str] | None = None) -> Chain:
    """Return the chain of least mean latency (eq. 10) under eq. 7, 8 and 9, by trying all.

    ``kept``: variants that it may have; None: any.
    """
    chains = all_chains(problem)
    if kept is not None:
        of = [one.variant for one in problem.candidates]
        chains = (chain for chain in chains if kept.issuperset(of[index] for index in chain))
    return _fastest(problem, chains)


def latency_gain(problem: CompositionProblem, index: int) -> float:
    """Return the whole model's time over the time to a hit at the candidate (eq. 1, 12)."""
    candidate = problem.candidates[index]
    return problem.total_s / (problem.reach_s[candidate.point] + candidate.evaluation_s)


def hit_rate(problem: CompositionProblem, index: int) -> float:
    return problem.candidates[index].hit_rate


Merit = Callable[[CompositionProblem, int], float]

MERITS: dict[str, Merit] = {"latency gain": latency_gain, "hit rate": hit_rate}


def accurate_candidates(problem: CompositionProblem) -> frozenset[int]:
    """Return the candidates that pass the accuracy filter (eq. 11)."""
    accuracies = (candidate.accuracy for candidate in problem.candidates)
    return frozenset(i for i, accuracy in enumerate(accuracies) if accuracy >= problem.accuracy)


def compose_with_alpha(problem: CompositionProblem, alpha: float) -> Chain:
    """Return the chain of greatest summed score α·H + (1 - α)·LG (eq. 13, 14).

    It keeps eq. 8, 9 and 11.
    """
    eligible = accurate_candidates(problem)
    scores = [
        alpha * hit_rate(problem, index) + (1 - alpha) * latency_gain(problem, index)
        for index in range(len(problem.candidates))
    ]
    chains = (chain for chain in all_chains(problem) if eligible.issuperset(chain))
    return max(chains, key=lambda chain: sum(scores[index] for index in chain))


def compose_by_score(problem: CompositionProblem) -> Chain:
    """Return the fastest chain that any α composes and that keeps eq. 7 (A.1.2)."""
    swept = ((), *(compose_with_alpha(problem, alpha) for alpha in ALPHAS))
    return _fastest(problem, iter(swept))


def compose_greedily(problem: CompositionProblem, merit: Merit) -> Chain:
    """Take the candidate of greatest merit that still fits, again and again (A.2.1)."""
    chain: Chain = ()
    for index in sorted(accurate_candidates(problem), key=lambda i: (-merit(problem, i), i)):
        longer = sorted([*chain, index], key=lambda index: problem.candidates[index].point)
        if problem.fits(longer):
            chain = tuple(longer)
    return chain
