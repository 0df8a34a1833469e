"""What stands beside the promise: thresholds on the softmax instead, audits of a degraded exit."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from brisk.exits.adaptation.features import gather, look_at
from brisk.exits.base_model import BaseModel, load_graph, taps_of
from brisk.exits.cascade import Cascade, Level
from brisk.exits.guarantee.audit import CascadeAudit
from brisk.exits.guarantee.calibration import Promise, calibrate
from brisk.exits.heads.lookup import SoftmaxLookUp, network_of
from brisk.exits.learning.exporting import export_look_up
from brisk.exits.model_graph import read_graph
from brisk_client.benchmarks.exits.data import ExitCase

INJECTED = 0.1
"""Share of an exit's answers that are made wrong."""


def load_for(model: Path, cascade: Cascade) -> BaseModel:
    """The model, cut so that the values at the cascade's exits and its scores can be read."""
    graph = read_graph(model)
    points = [exit_.point for exit_ in cascade.exits]
    return load_graph(graph, 1, taps_of(points, cascade.scores, graph))


def softmax_cascade(base: BaseModel, cascade: Cascade, case: ExitCase) -> Cascade | None:
    """With calibrated thresholds on the softmax (GATI, Fig. 23); None where nothing is proved.

    Tuned and calibrated on the rows that the cascade itself was.
    """
    own = [network_of(exit_) for exit_ in cascade.exits]
    networks = [SoftmaxLookUp(one.predictor, one.selector, one.gate).eval() for one in own]
    exits = tuple(
        dataclasses.replace(exit_, model=export_look_up(network, exit_.shape, exit_.variant))
        for exit_, network in zip(cascade.exits, networks, strict=True)
    )
    level = cascade.levels[0]
    saved_s = [exit_.saved_s for exit_ in exits]
    burden_s = [exit_.burden_s for exit_ in exits]
    division = case.division
    tune, held_out = (
        look_at(networks, gather(base, cascade, case.training.take(rows).inputs))
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
