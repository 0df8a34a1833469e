"""Is the promise kept: in repeated calibrations, by softmax thresholds, after a degradation?"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from brisk.execution import LoadedProgram
from brisk.exits.adaptation.judging import refutation
from brisk.exits.adaptation.looking import look_at
from brisk.exits.adaptation.material import Material, gather
from brisk.exits.audit import CascadeAudit
from brisk.exits.calibration import CascadeCount, Promise, Scored, calibrate, count_cascade
from brisk.exits.cascade import Cascade, Level
from brisk.exits.lookup import SoftmaxLookUp
from brisk.exits.samples import Division, Samples

CALIBRATIONS = 100
SCORED = ("scores", "right", "far")
INJECTED = 0.1
"""Share of an exit's answers that are made wrong."""


@dataclass(frozen=True, slots=True, eq=False)
class Unseen:
    """What trained no network of a cascade: rows to tune, to calibrate and to evaluate with."""

    tune: Material
    calibrate: Material
    evaluate: Material

    @classmethod
    def of(
        cls,
        loaded: LoadedProgram,
        cascade: Cascade,
        training: Samples,
        division: Division,
        evaluation: Samples,
    ) -> Unseen:
        parts = (training.take(division.tune), training.take(division.calibrate), evaluation)
        return cls(*(gather(loaded, cascade, part.inputs) for part in parts))


def softmax_cascade(cascade: Cascade, unseen: Unseen) -> Cascade | None:
    """With calibrated thresholds on the softmax (GATI, Fig. 23); None where nothing is proved."""
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
    found = calibrate(
        look_at(networks, unseen.tune),
        look_at(networks, unseen.calibrate),
        Promise(level.accuracy, cascade.confidence),
        lambda count: count.saving_s(saved_s, burden_s),
    )
    if found is None:
        return None
    levels = (Level(level.accuracy, found.thresholds, found.count),)
    return dataclasses.replace(cascade, exits=exits, levels=levels)


def answered(count: CascadeCount) -> float:
    return sum(exit_count.answered for exit_count in count.exits)


@dataclass(frozen=True, slots=True)
class Kept:
    """Of ``proved`` calibrations, on rows that they did not see: how many the rows refute."""

    proved: int
    refuted: int


def repeated_calibrations(cascade: Cascade, unseen: Unseen) -> Kept:
    """Divide the rows to calibrate and to evaluate anew, ``CALIBRATIONS`` times."""
    networks = [exit_.network for exit_ in cascade.exits]
    tune = look_at(networks, unseen.tune)
    parts = [look_at(networks, part) for part in (unseen.calibrate, unseen.evaluate)]
    pool = Scored(*(np.concatenate([getattr(part, name) for part in parts], 1) for name in SCORED))
    promise = Promise(cascade.levels[0].accuracy, cascade.confidence)
    random = np.random.default_rng(0)
    proved = refuted = 0
    for _ in range(CALIBRATIONS):
        rows = random.permutation(pool.scores.shape[1])
        half = len(unseen.calibrate)
        found = calibrate(tune, pool.take(rows[:half]), promise, answered)
        if found is not None:
            proved += 1
            rest = count_cascade(pool.take(rows[half:]), found.thresholds)
            refuted += bool(refutation(rest, promise))
    return Kept(proved, refuted)


def audits_until_off(agreed: Sequence[bool], accuracy: float, most: int) -> int | None:
    """Audited answers, as they were but 10 % made wrong, until the exit is off; None: never."""
    random = np.random.default_rng(0)
    audit = CascadeAudit(accuracy)
    for number in range(1, most + 1):
        right = agreed[int(random.integers(len(agreed)))] and random.uniform() >= INJECTED
        if audit.note(0, bool(right)):
            return number
    return None
