"""Trained variants, measured: their look-ups on this machine, their answers on unseen rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from brisk.exits.base_model import BaseModel
from brisk.exits.data.collecting import Collected
from brisk.exits.data.samples import Division
from brisk.exits.exploration.measuring.profile import Between, look_up_seconds, run_of
from brisk.exits.exploration.problem import Tried
from brisk.exits.exploration.settings import Progress
from brisk.exits.exploration.trial import Trial, evaluate, tensor_of
from brisk.exits.files.container import read_container
from brisk.exits.guarantee.calibration import Looked
from brisk.exits.heads.building import empty_look_up, load_weights
from brisk.exits.heads.lookup import LookUp
from brisk.exits.heads.lookup_model import LookUpModel
from brisk.exits.learning.exporting import export_look_up
from brisk.exits.points import ExitPoint
from brisk.exits.scores import Scores


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """Trained variants measured on this machine and on the rows that did not train them.

    ``example``: inputs of one row for ``base``, which runs between two look-ups and takes
    ``run_s`` where it was profiled.
    """

    base: BaseModel
    points: tuple[ExitPoint, ...]
    scores: Scores
    collected: Collected
    division: Division
    example: Mapping[str, np.ndarray]
    run_s: float

    def try_all(self, trials: Sequence[Trial], progress: Progress) -> list[Tried]:
        """The trials, in the same order."""
        tried: list[Tried] = []
        between = Between(run_of(self.base, self.example), self.run_s)
        by_position = {point.position: index for index, point in enumerate(self.points)}
        for trial in trials:
            index = by_position[trial.position]
            hidden = self.collected.hidden[index]
            shape, classes = tuple(hidden.shape[1:]), self.scores.classes
            network = empty_look_up(trial.variant, shape, classes)
            load_weights(network, read_container(trial.file).tensors)
            one = np.array(hidden[:1])
            model = export_look_up(network, shape, trial.variant)
            tried.append(
                Tried(
                    point=index,
                    variant=trial.variant,
                    lookup_s=look_up_seconds(LookUpModel(model, shape, classes), one, between),
                    model=model,
                    memory_bytes=2 * len(model) + one.nbytes,
                    example=one,
                    tune=self._scored(network, hidden, self.division.tune),
                    held_out=self._scored(network, hidden, self.division.calibrate),
                )
            )
            progress.advance()
        return tried

    def _scored(self, network: LookUp, hidden: np.ndarray, rows: np.ndarray) -> Looked:
        return evaluate(network, tensor_of(hidden, rows), self.collected.teacher[rows].argmax(1))
