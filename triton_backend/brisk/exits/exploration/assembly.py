"""Chosen caches as the cascade that is served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from brisk.exits.base_model import BaseModel, load_graph
from brisk.exits.cascade import Cascade, Exit, Expected, Level
from brisk.exits.composition import CompositionProblem
from brisk.exits.exploration.measuring.race import Verification, race
from brisk.exits.exploration.problem import Tried
from brisk.exits.exploration.selection import Chosen
from brisk.exits.exploration.shortlist import Finalist
from brisk.exits.guarantee.calibration import CascadeCount, ExitCount
from brisk.exits.model_graph import ModelGraph
from brisk.exits.points import ExitPoint
from brisk.exits.scores import Scores


@dataclass(frozen=True, slots=True, eq=False)
class Assembly:
    """What any cascade is made of.

    ``problems`` by whether look-ups are synchronous. ``boundaries``: points at which the model may
    stop, each with the seconds to there. ``confidence``: of all promises.
    """

    graph: ModelGraph
    threads: int
    digest: str
    scores: Scores
    points: Sequence[ExitPoint]
    tried: Sequence[Tried]
    problems: Mapping[bool, CompositionProblem]
    boundaries: Mapping[ExitPoint, float]
    confidence: float

    def cascade(
        self, synchronous: bool, chosen: Sequence[int], levels: Sequence[Level], mean_s: float
    ) -> Cascade:
        """``mean_s`` is expected of it."""
        return Cascade(
            model_digest=self.digest,
            scores=self.scores,
            exits=tuple(self._exit(synchronous, index) for index in chosen),
            levels=tuple(levels),
            confidence=self.confidence,
            expected=Expected(self.problems[synchronous].total_s, mean_s),
            synchronous=synchronous,
        )

    def of(self, chosen: Chosen) -> Cascade:
        """What is served."""
        return self.cascade(chosen.synchronous, chosen.tried, chosen.levels, chosen.latency_s)

    def unproved(self, finalist: Finalist, accuracy: float) -> Cascade:
        """At thresholds that nothing has proved yet, to be timed."""
        nothing = CascadeCount(0, tuple(ExitCount(0, 0) for _ in finalist.chosen), 0)
        level = Level(accuracy, finalist.thresholds, nothing)
        return self.cascade(finalist.synchronous, finalist.chosen, (level,), finalist.latency_s)

    def raced(
        self,
        whole: BaseModel,
        cascades: Sequence[Cascade],
        inputs: Sequence[Mapping[str, np.ndarray]],
    ) -> list[Verification]:
        """Each of them against the model."""
        models: dict[tuple[str, ...], BaseModel] = {}
        for one in cascades:
            if one.taps not in models:
                models[one.taps] = load_graph(self.graph, self.threads, one.taps)
        return race(whole, [(models[one.taps], one) for one in cascades], inputs)

    def _exit(self, synchronous: bool, index: int) -> Exit:
        problem = self.problems[synchronous]
        one, candidate = self.tried[index], problem.candidates[index]
        end_s = problem.reach_s[one.point] + candidate.lookup_s
        point, noticed = self.points[one.point], None
        if not synchronous:
            noticed = noticed_at(point, candidate.lookup_s, self.boundaries)
        return Exit(
            point=point,
            variant=one.variant,
            shape=tuple(one.example.shape[1:]),
            classes=self.scores.classes,
            model=one.model,
            lookup_s=one.lookup_s,
            memory_bytes=one.memory_bytes,
            saved_s=max(0.0, problem.total_s - end_s),
            burden_s=candidate.burden_s,
            noticed_at=noticed,
        )


def noticed_at(
    point: ExitPoint, wait_s: float, boundaries: Mapping[ExitPoint, float]
) -> str | None:
    """The value of the first boundary reached ``wait_s`` after ``point``; None: the end is."""
    ready_s = boundaries[point] + wait_s
    behind = sorted(
        (other for other in boundaries if other.position > point.position),
        key=lambda other: other.position,
    )
    return next((other.value for other in behind if boundaries[other] >= ready_s), None)
