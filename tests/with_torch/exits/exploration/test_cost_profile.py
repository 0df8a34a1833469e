"""Times that composition compares to a hundredth, on a machine that is now fast and now slow."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from brisk.exits.base_model import BaseModel
from brisk.exits.exploration import measuring
from brisk.exits.exploration.measuring import Between, evaluation_seconds, profile_base
from brisk.exits.heads.exit_model import ExitEvaluation
from support.exits.cascades import served


class SlowingMachine:
    """A clock that work moves: each run of the model takes longer than the one before."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, growth: float) -> None:
        self.now_s = 0.0
        self.slowness = 1.0
        self._growth = growth
        monkeypatch.setattr(measuring.time, "perf_counter", lambda: self.now_s)

    def work(self, seconds: float) -> Callable[..., None]:
        def taken(*_: object) -> None:
            self.now_s += seconds * self.slowness

        return taken

    def run(self) -> None:
        self.slowness *= self._growth
        self.now_s += 0.003 * self.slowness


def test_an_evaluation_is_timed_by_the_runs_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def network(hidden: np.ndarray) -> ExitEvaluation:
        raise AssertionError("the machine works instead")

    for growth in (1.0, 1.03, 1.06):
        machine = SlowingMachine(monkeypatch, growth)
        monkeypatch.setattr(measuring, "evaluate_exit", machine.work(0.00006))
        found_s = evaluation_seconds(
            network, np.zeros((1, 4, 2, 2), np.float32), Between(machine.run, 0.003)
        )
        assert found_s == pytest.approx(0.00006, rel=1e-6), growth


def test_what_stopping_costs_is_what_runs_behind_each_other_differ_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = served(tail="plain")
    machine = SlowingMachine(monkeypatch, 1.004)

    def steps(*_: object) -> list[tuple[int, float]]:
        machine.run()
        return [(1, 0.001 * machine.slowness), (2, 0.00203 * machine.slowness)]

    monkeypatch.setattr(measuring, "_steps", steps)
    monkeypatch.setattr(BaseModel, "run", lambda *_: machine.run())
    points = [exit_.point for exit_ in model.cascade.exits]
    profile = profile_base(model.whole, model.cut, points, {})
    assert profile.cut_s - profile.total_s == pytest.approx(0.01 * profile.total_s, rel=0.2)
    first, last = (profile.reach_s[point.position] for point in points)
    assert 0 < first < last < profile.cut_s * 1.05
