"""Trained variants, measured: their look-ups on this machine, their answers on unseen rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from brisk.execution.loading import LoadedProgram
from brisk.exits.building import empty_look_up, load_weights
from brisk.exits.calibration import Looked
from brisk.exits.collecting import Collected
from brisk.exits.compiled_lookup import is_compiled, look_up_bytes
from brisk.exits.container import read_container
from brisk.exits.exploration.composing import Tried
from brisk.exits.exploration.profile import Between, look_up_seconds, run_of
from brisk.exits.exploration.settings import Progress
from brisk.exits.exploration.trial import Trial, evaluate, tensor_of
from brisk.exits.lookup import LookUp
from brisk.exits.points import ExitPoint
from brisk.exits.samples import Division
from brisk.exits.scores import Scores
from brisk.solutions.base import Value


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """Trained variants measured on this machine and on the rows that did not train them.

    ``example``: inputs of one row for ``loaded``, which runs between two look-ups and takes
    ``run_s`` where it was profiled.
    """

    loaded: LoadedProgram
    points: tuple[ExitPoint, ...]
    scores: Scores
    collected: Collected
    division: Division
    example: Mapping[str, Value]
    run_s: float

    def try_all(
        self, trials: Sequence[Trial], progress: Progress
    ) -> tuple[list[Tried], list[LookUp]]:
        """The trials with their networks, in the same order."""
        tried: list[Tried] = []
        networks: list[LookUp] = []
        between = Between(run_of(self.loaded, self.example), self.run_s)
        by_position = {point.position: index for index, point in enumerate(self.points)}
        for trial in trials:
            index = by_position[trial.position]
            hidden = self.collected.hidden[index]
            network = empty_look_up(trial.variant, tuple(hidden.shape[1:]), self.scores.classes)
            load_weights(network, read_container(trial.file).tensors)
            one = torch.tensor(hidden[:1])
            tried.append(
                Tried(
                    point=index,
                    variant=trial.variant,
                    lookup_s=look_up_seconds(network, one, between),
                    is_compiled=is_compiled(network, tuple(one.shape[1:])),
                    memory_bytes=look_up_bytes(network, tuple(one.shape[1:])) + one.nbytes,
                    example=one,
                    tune=self._scored(network, hidden, self.division.tune),
                    held_out=self._scored(network, hidden, self.division.calibrate),
                )
            )
            networks.append(network)
            progress.advance()
        return tried, networks

    def _scored(self, network: LookUp, hidden: np.ndarray, rows: np.ndarray) -> Looked:
        return evaluate(network, tensor_of(hidden, rows), self.collected.teacher[rows].argmax(1))
