"""Trials beside each other, in processes of one thread each."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

from brisk.exits.exploration.trial import Trial, is_done, run_trial

NICENESS = 10
"""Of the training processes: whatever else the machine does comes first."""


def run_trials(trials: Sequence[Trial], jobs: int, advance: Callable[[], None]) -> None:
    """Run all; raises what the first that fails raised.

    The order of completion does not matter: each trial has its seed and its file.
    """
    missing = [trial for trial in trials if not is_done(trial)]
    for _ in range(len(trials) - len(missing)):
        advance()
    trials = missing
    if jobs <= 1 or len(trials) <= 1:
        for trial in trials:
            run_trial(trial)
            advance()
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=_settle_down) as pool:
        for future in as_completed([pool.submit(run_trial, trial) for trial in trials]):
            future.result()
            advance()


def _settle_down() -> None:
    os.nice(NICENESS)
