"""The same inputs through a bare model and through one with caches, in turns."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from brisk.execution import Frame, LoadedProgram, load_program
from brisk.execution.joining import executor_absence
from brisk.exits.cascade import Cascade
from brisk.exits.collecting import bind_rows
from brisk.exits.samples import Samples
from brisk.exits.serving import ExitingFrame, LookUpLane, Places, find_places
from brisk.graph import read_program
from brisk.solutions.base import Value

WARM_UP = 10
QUICK_BATCHES = 100


@dataclass(slots=True)
class Side:
    """Seconds from a batch's start to each row's answer, and what was answered."""

    times_s: list[float] = field(default_factory=list)
    agreeing: int = 0
    exited: int = 0

    @property
    def inputs(self) -> int:
        return len(self.times_s)

    @property
    def mean_s(self) -> float:
        return float(np.mean(self.times_s))

    @property
    def agreement(self) -> float:
        return self.agreeing / self.inputs

    @property
    def early(self) -> float:
        return self.exited / self.inputs

    def quantile_s(self, share: float) -> float:
        return float(np.quantile(self.times_s, share))


def measure_sides(
    model: Path, cascade: Cascade, samples: Samples, batch: int, quick: bool
) -> dict[str, Side]:
    """``bare``, ``caches`` as composed, and with look-ups the other way round, one thread."""
    torch.set_num_threads(1)
    program, cpu = read_program(model), torch.device("cpu")
    whole, cut = load_program(program, cpu), load_program(program, cpu, cuts=cascade.cuts)
    executor_absence()
    places = find_places(cut, cascade)
    assert places is not None, "the caches are of this model"
    lane = LookUpLane()
    lanes = {"caches": None if cascade.synchronous else lane}
    other = "look-ups in a lane" if cascade.synchronous else "look-ups in the model's thread"
    lanes[other] = lane if cascade.synchronous else None
    sides = {name: Side() for name in ("bare", *lanes)}
    starts = list(range(0, len(samples) - batch + 1, batch))
    if quick:
        starts = starts[:QUICK_BATCHES]
    with torch.inference_mode():
        for turn, start in enumerate([*starts[:WARM_UP], *starts]):
            inputs = bind_rows(samples.take(slice(start, start + batch)), whole)
            fresh = {name: Side() for name in sides}
            truth = _run_bare(whole, cascade, inputs, fresh["bare"])
            for name, chosen in lanes.items():
                _run_early(cut, cascade, places, chosen, inputs, truth, fresh[name])
            if turn >= WARM_UP:
                for name, side in fresh.items():
                    _add(sides[name], side)
    lane.close()
    return sides


def _run_bare(
    whole: LoadedProgram, cascade: Cascade, inputs: Mapping[str, Value], side: Side
) -> list[int]:
    """The model's classes."""
    started_s = time.perf_counter()
    frame = Frame(whole, inputs)
    while not frame.step():
        pass
    taken_s = time.perf_counter() - started_s
    scores = frame.results()[cascade.scores.value]
    assert isinstance(scores, torch.Tensor), "the class scores are an output"
    classes: list[int] = scores.argmax(1).tolist()
    side.times_s = [taken_s] * len(classes)
    side.agreeing = len(classes)
    return classes


def _run_early(
    cut: LoadedProgram,
    cascade: Cascade,
    places: Places,
    lane: LookUpLane | None,
    inputs: Mapping[str, Value],
    truth: list[int],
    side: Side,
) -> None:
    times_s = [0.0] * len(truth)
    started_s = time.perf_counter()
    frame = ExitingFrame(cut, cascade, places, cascade.levels[0], lane, inputs)
    finished = False
    while not finished:
        finished = frame.step()
        answers = frame.take_answers()
        now_s = time.perf_counter() - started_s
        for answer in answers:
            scores = answer.values[cascade.scores.value]
            assert isinstance(scores, torch.Tensor), "the class scores are an output"
            for row, found in zip(answer.rows, scores.argmax(1).tolist(), strict=True):
                times_s[row] = now_s
                side.agreeing += found == truth[row]
                side.exited += answer.exit_index is not None
    side.times_s = times_s


def _add(whole: Side, part: Side) -> None:
    whole.times_s += part.times_s
    whole.agreeing += part.agreeing
    whole.exited += part.exited
