"""Benchmarks of exits that are won."""

from __future__ import annotations

import dataclasses
import importlib

import pytest

from brisk.exits.exploration.composition import CompositionProblem
from brisk.exits.exploration.measuring import Verification


def win_benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small networks gain nothing: so each benchmark is won, whatever the clock says."""
    explore = importlib.import_module("brisk.exits.exploration.explore")
    study = importlib.import_module("brisk.exits.exploration.study")
    whole_only = importlib.import_module("brisk.exits.exploration.whole_only")
    won_alone = Verification(2e-3, 1e-3, 0.9, 0.0)
    monkeypatch.setattr(whole_only, "benchmark", lambda _, pairs, __: [won_alone] * len(pairs))
    monkeypatch.setattr(whole_only, "evaluation_seconds", lambda *_: 1e-6)

    def won(studied: object, cascades: list[object], _: object) -> list[Verification]:
        return [won_alone] * len(cascades)

    monkeypatch.setattr(study.Studied, "benchmarked", won)
    monkeypatch.setattr(explore, "_untrained_s", lambda *_: 0.0)
    real = study.composition_problem

    def generous(*arguments: object) -> CompositionProblem:
        problem = real(*arguments)  # type: ignore[arg-type]  # whatever it was called with
        free = tuple(
            dataclasses.replace(one, overhead_s=0.0, evaluation_s=0.0)
            for one in problem.candidates
        )
        reach_s = tuple(0.01 * place for place in range(len(problem.reach_s)))
        return dataclasses.replace(problem, candidates=free, reach_s=reach_s, total_s=1.0)

    monkeypatch.setattr(study, "composition_problem", generous)
