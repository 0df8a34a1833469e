"""What stands beside the promise: thresholds on the softmax instead, audits of a degraded exit."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from brisk.execution.loading import LoadedProgram
from brisk.exits.adaptation.looking import look_at
from brisk.exits.adaptation.material import gather
from brisk.exits.audit import CascadeAudit
from brisk.exits.calibration import Promise, calibrate
from brisk.exits.cascade import Cascade, Level
from brisk.exits.lookup import SoftmaxLookUp
from brisk_client.benchmarks.exit_data import Case

INJECTED = 0.1
"""Share of an exit's answers that are made wrong."""


def softmax_cascade(loaded: LoadedProgram, cascade: Cascade, case: Case) -> Cascade | None:
    """With calibrated thresholds on the softmax (GATI, Fig. 23); None where nothing is proved.

    Tuned and calibrated on the rows that the cascade itself was.
    """
    exits = tuple(
        dataclasses.replace(
            exit_,
            network=SoftmaxLookUp(
                exit_.network.predictor, exit_.network.selector, exit_.network.gate
            ).eval(),
        )
        for exit_ in cascade.exits
    )
    networks = [exit_.network for exit_ in exits]
    level = cascade.levels[0]
    saved_s = [exit_.saved_s for exit_ in exits]
    burden_s = [exit_.burden_s for exit_ in exits]
    division = case.division
    tune, held_out = (
        look_at(networks, gather(loaded, cascade, case.training.take(rows).inputs))
        for rows in (division.tune, division.calibrate)
    )
    found = calibrate(
        tune,
        held_out,
        Promise(level.accuracy, cascade.confidence),
        lambda count: count.saving_s(saved_s, burden_s),
    )
    if found is None:
        return None
    levels = (Level(level.accuracy, found.thresholds, found.count),)
    return dataclasses.replace(cascade, exits=exits, levels=levels)


def audits_until_off(agreed: Sequence[bool], accuracy: float, most: int) -> int | None:
    """Audited answers, as they were but 10 % made wrong, until the exit is off; None: never."""
    random = np.random.default_rng(0)
    audit = CascadeAudit(accuracy)
    for number in range(1, most + 1):
        right = agreed[int(random.integers(len(agreed)))] and random.uniform() >= INJECTED
        if audit.note(0, bool(right)):
            return number
    return None
