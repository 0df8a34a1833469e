"""The same inputs through a bare model and through ones with caches, interleaved."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from brisk.exits.adaptation.features import read_points
from brisk.exits.base_model import BaseModel, load_graph, taps_of
from brisk.exits.cascade import Cascade
from brisk.exits.data.collecting import bind_rows
from brisk.exits.data.samples import Samples
from brisk.exits.model_graph import read_graph
from brisk.exits.serving.exit_thread import ExitThread
from brisk.exits.serving.frame import ExitingFrame, find_places
from brisk_bench.harness.report import save_figure, subplots
from brisk_bench.harness.tails import quantile, tail_or_shortage

WARM_UP = 10
QUICK_BATCHES = 400
BARE = "bare"


@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """A cascade to measure.

    ``synchronous``: exits are evaluated in the model's thread.
    ``accuracy``: of the level to measure; None: the first level.
    """

    cascade: Cascade
    synchronous: bool
    accuracy: float | None = None


Scoring = Callable[[Mapping[str, np.ndarray]], np.ndarray]
"""Another model that takes the same inputs and returns the scores [rows, classes] of all rows."""


@dataclass(slots=True)
class ExitSide:
    """The results of one side.

    ``times_s``: seconds from a batch's start to each row's answer.
    ``agreeing``: rows whose answer agrees with the bare model.
    ``agreed_early``: of rows that a cache answered, whether that agrees with the bare model.
    """

    times_s: list[float] = field(default_factory=list)
    agreeing: int = 0
    agreed_early: list[bool] = field(default_factory=list)

    @property
    def mean_s(self) -> float:
        return float(np.mean(self.times_s))

    @property
    def agreement(self) -> float:
        return self.agreeing / len(self.times_s)

    @property
    def early(self) -> float:
        return len(self.agreed_early) / len(self.times_s)

    @property
    def early_agreement(self) -> float | None:
        """The agreement of the answers that a cache gave; None if it gave none."""
        return float(np.mean(self.agreed_early)) if self.agreed_early else None

    def columns(self, base: ExitSide) -> dict[str, Any]:
        """Return a report's columns; ``base``: the bare model's side, on the same inputs."""
        return {
            "mean_ms": self.mean_s * 1e3,
            "median_ms": quantile(self.times_s, 0.5) * 1e3,
            "p99_ms": tail_or_shortage(self.times_s, 0.99, 1e3),
            "speed_up": base.mean_s / self.mean_s,
            "agreement": self.agreement,
            "early": self.early,
            "early_agreement": self.early_agreement,
            "inputs": len(self.times_s),
        }

    def add(self, other: ExitSide) -> None:
        self.times_s += other.times_s
        self.agreeing += other.agreeing
        self.agreed_early += other.agreed_early


class ExitBench:
    """A model loaded bare and, for each set of exits, cut at them, with its own exit thread."""

    def __init__(self, model: Path) -> None:
        self._graph = read_graph(model)
        self._whole = scoring(load_graph(self._graph))
        self._cut: dict[tuple[str, ...], BaseModel] = {}
        self._exit_thread = ExitThread()

    def close(self) -> None:
        self._exit_thread.close()

    def measure(
        self, versions: Mapping[str, Version | Scoring], samples: Samples, batch: int, quick: bool
    ) -> dict[str, ExitSide]:
        """Measure ``bare`` and each version on the same inputs, in a random order for each input.

        A side that always came after one which runs the same early layers would find its weights
        in the processor's cache, one after the bare model would not.
        """
        random = np.random.default_rng(0)
        starts = list(range(0, len(samples) - batch + 1, batch))
        if quick:
            starts = starts[:QUICK_BATCHES]
        measured: dict[str, Version | Scoring] = {BARE: self._whole, **versions}
        sides = {name: ExitSide() for name in measured}
        names = list(sides)
        for turn, start in enumerate([*starts[:WARM_UP], *starts]):
            inputs = bind_rows(samples.take(slice(start, start + batch)))
            truth = self._whole(inputs).argmax(1)
            for place in random.permutation(len(names)).tolist():
                one = self._run(measured[names[place]], inputs, truth)
                if turn >= WARM_UP:
                    sides[names[place]].add(one)
        return sides

    def _run(
        self, version: Version | Scoring, inputs: Mapping[str, np.ndarray], truth: np.ndarray
    ) -> ExitSide:
        if isinstance(version, Version):
            return self._run_early(version, inputs, truth)
        started_s = time.perf_counter()
        scores = version(inputs)
        taken_s = time.perf_counter() - started_s
        return ExitSide([taken_s] * len(truth), int((scores.argmax(1) == truth).sum()))

    def _run_early(
        self, version: Version, inputs: Mapping[str, np.ndarray], truth: np.ndarray
    ) -> ExitSide:
        cascade = version.cascade
        if cascade.taps not in self._cut:
            self._cut[cascade.taps] = load_graph(self._graph, 1, cascade.taps)
        cut = self._cut[cascade.taps]
        places, level = find_places(cut.plan, cut.graph, cascade), cascade.level(version.accuracy)
        assert places is not None, "the caches are of this model"
        assert level is not None, "the caches keep this accuracy"
        exit_thread = None if version.synchronous else self._exit_thread
        side = ExitSide([0.0] * len(truth))
        started_s = time.perf_counter()
        frame = ExitingFrame(cut.program, cascade, places, level, exit_thread, inputs)
        finished = False
        while not finished:
            finished = frame.step()
            answers = frame.take_answers()
            now_s = time.perf_counter() - started_s
            for answer in answers:
                agreed = next(iter(answer.values.values())).argmax(1) == truth[list(answer.rows)]
                side.agreeing += int(agreed.sum())
                for row in answer.rows:
                    side.times_s[row] = now_s
                if answer.exit_index is not None:
                    side.agreed_early += agreed.tolist()
        return side


def load_for(model: Path, cascade: Cascade) -> BaseModel:
    """Load the model, cut so that the values at the cascade's exits and its scores can be read."""
    graph = read_graph(model)
    return load_graph(graph, 1, taps_of(read_points(cascade), cascade.scores, graph))


def side_rows(model: str, batch: int, sides: Mapping[str, ExitSide]) -> list[dict[str, Any]]:
    """Return a report's row for each side."""
    return [
        {"model": model, "side": name, "batch": batch, **side.columns(sides[BARE])}
        for name, side in sides.items()
    ]


def scoring(base: BaseModel) -> Scoring:
    return lambda inputs: next(iter(base.run(inputs).values()))


TAILS = 1.3
"""The end of a plot's CDF, in slowest 95th percentiles: a slow request would squeeze the rest."""


def plot_sides(label: str, sides: Mapping[str, ExitSide], folder: Path) -> Path:
    """Plot a file: left the CDF of latencies (GATI, Fig. 6a), right agreement by mean."""
    figure, (left, right) = subplots(1, 2, figsize=(10, 4))
    for number, (name, side) in enumerate(sorted(sides.items(), key=lambda one: one[1].mean_s)):
        times_ms = np.sort(side.times_s) * 1e3
        left.plot(times_ms, np.arange(1, len(times_ms) + 1) / len(times_ms), label=name)
        point = (side.mean_s * 1e3, side.agreement * 100)
        right.scatter(*point)
        aside = (0, 6 if number % 2 else -12)
        right.annotate(name, point, xytext=aside, textcoords="offset points", ha="center", size=8)
    longest_s = max(quantile(side.times_s, 0.95) for side in sides.values())
    left.set(xlim=(0, TAILS * longest_s * 1e3), xlabel="latency, ms", ylabel="share of inputs")
    left.legend()
    slowest_s = max(side.mean_s for side in sides.values())
    right.margins(y=0.15)
    right.set(xlim=(0, 1.25 * slowest_s * 1e3), xlabel="mean latency, ms")
    right.set_ylabel("agreement with the bare model, %")
    figure.suptitle(label)
    return save_figure(figure, folder / f"exits-{label.replace(' ', '-').replace(',', '')}.png")
