"""Chosen caches as the cascade that is served."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from brisk.execution.loading import LoadedProgram, load_program
from brisk.exits.calibration import CascadeCount, ExitCount
from brisk.exits.cascade import Cascade, Exit, Expected, Level
from brisk.exits.composition import CompositionProblem
from brisk.exits.exploration.choosing import Chosen
from brisk.exits.exploration.composing import Tried
from brisk.exits.exploration.finalists import Finalist
from brisk.exits.exploration.race import Verification, race
from brisk.exits.lookup import LookUp
from brisk.exits.points import ExitPoint
from brisk.exits.scores import Scores
from brisk.graph.program import Program
from brisk.solutions.base import Value


@dataclass(frozen=True, slots=True, eq=False)
class Assembly:
    """What any cascade is made of; ``networks`` are those of ``tried``.

    ``problems`` by whether look-ups are synchronous. ``reach_s``: of every boundary at which the
    model may stop. ``confidence``: of all promises.
    """

    program: Program
    digest: str
    scores: Scores
    points: Sequence[ExitPoint]
    tried: Sequence[Tried]
    networks: Sequence[LookUp]
    problems: Mapping[bool, CompositionProblem]
    reach_s: Mapping[int, float]
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
        whole: LoadedProgram,
        cascades: Sequence[Cascade],
        inputs: Sequence[Mapping[str, Value]],
    ) -> list[Verification]:
        """Each of them against the model."""
        programs: dict[tuple[int, ...], LoadedProgram] = {}
        for cascade in cascades:
            if cascade.cuts not in programs:
                cpu = torch.device("cpu")
                programs[cascade.cuts] = load_program(self.program, cpu, cuts=cascade.cuts)
        return race(whole, [(programs[one.cuts], one) for one in cascades], inputs)

    def _exit(self, synchronous: bool, index: int) -> Exit:
        problem = self.problems[synchronous]
        one, candidate = self.tried[index], problem.candidates[index]
        end_s = problem.reach_s[one.point] + candidate.lookup_s
        point, noticed = self.points[one.point], None
        if not synchronous and not one.is_compiled:
            noticed = noticed_at(point.position, candidate.lookup_s, self.reach_s)
        return Exit(
            point=point,
            variant=one.variant,
            shape=tuple(one.example.shape[1:]),
            network=self.networks[index],
            lookup_s=one.lookup_s,
            memory_bytes=one.memory_bytes,
            saved_s=max(0.0, problem.total_s - end_s),
            burden_s=candidate.burden_s,
            noticed_at=noticed,
        )


def noticed_at(position: int, wait_s: float, reach_s: Mapping[int, float]) -> int | None:
    """The first boundary that is reached ``wait_s`` after ``position``; None: the end is."""
    ready_s = reach_s[position] + wait_s
    behind = (other for other, at_s in sorted(reach_s.items()) if other > position)
    return next((other for other in behind if reach_s[other] >= ready_s), None)
