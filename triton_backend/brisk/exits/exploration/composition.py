"""The composition problem: the trained variants as measured, of which a cascade is chosen, and its
constraints (GATI, section 4, A.1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from brisk.exits.cascade import WHOLE_MODELS, way
from brisk.exits.exploration.measuring import BaseProfile, EvaluationCost
from brisk.exits.exploration.settings import ExplorationSettings
from brisk.exits.files.learning_record import MOST_WAYS, WayTried
from brisk.exits.guarantee.calibration import Scored
from brisk.exits.guarantee.proposals import threshold_for
from brisk.exits.heads.exit_model import Judge, Shape
from brisk.exits.model_graph import ExitPoint


@dataclass(frozen=True, slots=True)
class CandidateExit:
    """A trained variant at an exit point, as exploration measured it."""

    point: int
    """Index of the exit point, in the order of execution (the paper's i)."""
    variant: str
    hit_rate: float
    """Share of all inputs that it would answer if it were the only cache (H)."""
    accuracy: float
    """Share of its answers that agree with the base model (A); 1 without hits."""
    evaluation_s: float
    """The time from the hidden output to the decision, on the serving hardware (T)."""
    memory_bytes: int
    """The memory of its weights and of an evaluation (M)."""
    overhead_s: float = 0.0
    """The time that an evaluation without a hit adds to the base model's own."""
    judge: Judge = Judge.SELECTOR

    @property
    def is_whole(self) -> bool:
        """Whether it is a whole model, which may follow an exit at the same point."""
        return self.variant in WHOLE_MODELS

    @property
    def place(self) -> tuple[int, bool]:
        """The key that orders the exits of a cascade, of which no two have the same."""
        return self.point, self.is_whole


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """Held-out inputs through every candidate; bool [candidates, inputs] both."""

    hits: np.ndarray
    """Whether each candidate would answer each input, bool [candidates, inputs]."""
    right: np.ndarray
    """Whether its prediction agrees with the base model's, hit or not; of the shape of
    ``hits``."""


@dataclass(frozen=True, slots=True, eq=False)
class CompositionProblem:
    """Candidate exits of a model, for one evaluation mode."""

    reach_s: tuple[float, ...]
    """The time from the start of a run to the value at each point."""
    total_s: float
    """The time from the start of a run to its end."""
    candidates: tuple[CandidateExit, ...]
    accuracy: float
    """The least cumulative agreement (eq. 7)."""
    outcomes: Outcomes
    memory_budget_bytes: int | None = None
    """The most memory of all caches together; None: no limit (eq. 8)."""

    def overhead_s(self, chosen: Sequence[int]) -> float:
        """Return the extra time that an input takes if all of ``chosen`` miss it."""
        return sum(self.candidates[index].overhead_s for index in chosen)

    def saved_s(self, index: int) -> float:
        """Return the time of the model that an answer of the candidate saves."""
        one = self.candidates[index]
        return self.total_s - self.reach_s[one.point] - one.evaluation_s

    def is_worthwhile(self, index: int) -> bool:
        """Whether the candidate alone would make the mean latency shorter (eq. 10)."""
        one = self.candidates[index]
        return self.fits([index]) and one.hit_rate * self.saved_s(index) > one.overhead_s

    def alone_s(self, index: int) -> float:
        """Return the expected mean latency of tuning rows with the candidate alone."""
        one = self.candidates[index]
        return self.total_s - one.hit_rate * self.saved_s(index) + one.overhead_s

    def has_memory(self, chosen: Iterable[int]) -> bool:
        """Whether ``chosen`` keep to the memory budget (eq. 8)."""
        used_bytes = sum(self.candidates[index].memory_bytes for index in chosen)
        return self.memory_budget_bytes is None or used_bytes <= self.memory_budget_bytes

    def fits(self, chosen: Sequence[int]) -> bool:
        """Whether ``chosen``, in the order of their points, keep to eq. 8 and eq. 9.

        Eq. 9: an evaluation has ended when the value for the next one, or the answer, is there.
        """
        after, until_s = (len(self.reach_s), True), self.total_s
        for index in reversed(chosen):
            one = self.candidates[index]
            if one.place >= after or one.evaluation_s > until_s - self.reach_s[one.point]:
                return False
            after, until_s = one.place, self.reach_s[one.point]
        return self.has_memory(chosen)


COMPOSED_STRICTNESS = 0.6
"""The share of the allowed disagreement that the thresholds of judged candidates use up."""


@dataclass(frozen=True, slots=True, eq=False)
class Tried:
    """A trained variant: its costs, and its scores on the rows to tune and to calibrate with."""

    point: int
    variant: str
    evaluation_s: float
    """The time of an evaluation in the thread that runs the model."""
    model: bytes
    """The exit's ONNX model."""
    memory_bytes: int
    shape: Shape
    tune: Scored
    held_out: Scored
    judge: Judge = Judge.SELECTOR


def composition_problem(
    tried: Sequence[Tried],
    points: Sequence[ExitPoint],
    cost: EvaluationCost,
    profile: BaseProfile,
    settings: ExplorationSettings,
    synchronous: bool,
) -> CompositionProblem:
    """Return the variants' composition problem, for one evaluation mode.

    In the exit thread an evaluation takes its hand-over, too, and has a small overhead for the
    model. In the model's own thread all of it is overhead, for hits and misses alike, and
    evaluations never overlap. Either way the model has to stop at the exit; for the exit thread it
    stops once more, to read the result.
    """
    stops = sum(point.position > 0 for point in points)
    stop_s = max(0.0, profile.cut_s - profile.total_s) / max(stops, 1)
    hits, right, candidates = [], [], []
    for one in tried:
        ok = one.tune.right
        hit = one.tune.scores >= composed_threshold(one, settings)
        hits.append(hit)
        right.append(ok)
        if synchronous:
            overhead_s = stop_s + cost.wake_s + one.evaluation_s
        else:
            overhead_s = 2 * stop_s + cost.overhead_s
        candidates.append(
            CandidateExit(
                point=one.point,
                variant=one.variant,
                judge=one.judge,
                hit_rate=float(hit.mean()),
                accuracy=float(ok[hit].mean()) if hit.any() else 1.0,
                evaluation_s=0.0 if synchronous else one.evaluation_s + cost.handover_s,
                memory_bytes=one.memory_bytes,
                overhead_s=overhead_s,
            )
        )
    before = len(points) - stops
    reach_s = [
        max(0.0, profile.reach_s[point.position] - stop_s * (index + 1 - before))
        for index, point in enumerate(points)
    ]
    return CompositionProblem(
        reach_s=tuple(reach_s),
        total_s=profile.total_s,
        candidates=tuple(candidates),
        accuracy=settings.accuracy,
        memory_budget_bytes=settings.memory_budget_bytes,
        outcomes=Outcomes(np.array(hits), np.array(right)),
    )


def ways_tried(
    problems: Iterable[CompositionProblem], points: Sequence[ExitPoint]
) -> tuple[WayTried, ...]:
    """Return the best candidate of each kind of predictor and judge, the best first."""
    best: dict[str, WayTried] = {}
    for problem in problems:
        for index, one in enumerate(problem.candidates):
            kind = way(one.variant, one.judge)
            name = f"{kind}@{points[one.point].position}"
            tried = WayTried(name, one.hit_rate, problem.total_s / problem.alone_s(index))
            best[kind] = max(tried, best.get(kind, tried), key=lambda each: each.speed_up)
    ranked = sorted(best.values(), key=lambda each: -each.speed_up)
    return tuple(ranked[:MOST_WAYS])


def composed_threshold(one: Tried, settings: ExplorationSettings) -> float:
    """Return the threshold at which composition counts the answers of ``one``.

    It is taken from tuning rows; nothing proves it.
    """
    accuracy = 1 - COMPOSED_STRICTNESS * (1 - settings.accuracy)
    return threshold_for(one.tune.scores, one.tune.right, accuracy)
