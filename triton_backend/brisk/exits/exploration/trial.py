"""One cell of the exploration: a variant at a point, trained and kept in a file of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from brisk.exits.data.collecting import Collected
from brisk.exits.data.outliers import EXPOSED, KEPT, LEARNED
from brisk.exits.data.samples import Division
from brisk.exits.exploration.composition import Tried
from brisk.exits.exploration.measuring import Between, look_up_seconds
from brisk.exits.exploration.settings import Progress
from brisk.exits.files.container import DamagedFileError, read_container, write_container
from brisk.exits.guarantee.calibration import Scored
from brisk.exits.heads.distance_gate import DistanceGate, summary
from brisk.exits.heads.lookup import (
    LookUp,
    Selector,
    decided,
    empty_look_up,
    load_weights,
    predict,
    weights_of,
)
from brisk.exits.heads.lookup_model import LookUpModel
from brisk.exits.heads.predictors import settled, variant
from brisk.exits.learning.exporting import export_look_up
from brisk.exits.learning.predictor import (
    PredictorSettings,
    features_of,
    fit_last_layer,
    last_layer,
    train_predictor,
)
from brisk.exits.learning.selection import (
    OUTLIERS_WEIGHT,
    SelectorSettings,
    fit_selection,
)
from brisk.exits.model_graph import ExitPoint
from brisk.os_priority import TRAINING, lower_thread

METHOD = 4
"""Counts what a trial's settings do not tell: 4, rows and outliers are divided by source. What
another method has left in a folder is trained again."""

READ_ROWS = 256

GATE_ROWS = 4096
"""Rows that centre and scale of the gate are taken from."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What to train, from files, so that any process can do it.

    ``folder`` holds ``hidden-<position>.npy``, ``teacher.npy`` and ``rows.npz`` (see ``explore``).
    """

    folder: Path
    position: int
    variant: str
    predictor: PredictorSettings
    selector: SelectorSettings
    seed: int

    @property
    def file(self) -> Path:
        return self.folder / f"trial-{self.position}-{self.variant}.caches"


def is_done(trial: Trial) -> bool:
    """Whether an earlier run has trained it with the same settings."""
    try:
        return read_container(trial.file).header == _marker(trial)
    except (OSError, DamagedFileError):
        return False


def _marker(trial: Trial) -> dict[str, object]:
    return {
        "method": METHOD,
        "predictor": asdict(trial.predictor),
        "selector": asdict(trial.selector),
        "seed": trial.seed,
    }


def run_trial(trial: Trial) -> Path:
    """Train and write; does nothing where an earlier run has done it with the same settings."""
    if is_done(trial):
        return trial.file
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(trial.seed)
            network = _train(trial)
    finally:
        torch.set_num_threads(threads)
    write_container(trial.file, _marker(trial), weights_of(network))
    return trial.file


def _train(trial: Trial) -> LookUp:
    hidden = np.load(trial.folder / f"hidden-{trial.position}.npy", mmap_mode="r")
    teacher = np.load(trial.folder / "teacher.npy")
    with np.load(trial.folder / "rows.npz") as rows:
        fit, select = rows["fit"], rows["select"]
        outliers, kinds, meant = rows["outliers"], rows["kinds"], rows["meant"]
    classes = teacher.shape[1]
    fit_hidden = tensor_of(hidden, fit)
    distribution = torch.tensor(teacher[fit])
    exposed, learned, kept = (outliers[meant == use] for use in (EXPOSED, LEARNED, KEPT))
    network = variant(trial.variant).build(tuple(hidden.shape[1:]), classes)
    _fit(network, fit_hidden, distribution, tensor_of(hidden, exposed), trial)
    gate = DistanceGate(summary(fit_hidden[:1]).shape[1], classes)
    # Both draw random numbers: another order of the two would be another METHOD.
    look_up = LookUp(settled(network), Selector(classes), gate)
    gate.fit(summary(fit_hidden[:GATE_ROWS]), distribution[:GATE_ROWS].argmax(1))
    ordinary, strange, floor = (
        predict(look_up, tensor_of(hidden, chosen), torch.from_numpy(wanted))
        for chosen, wanted in (
            (select, teacher[select].argmax(1)),
            (learned, teacher[learned].argmax(1)),
            (kept, kinds[meant == KEPT]),
        )
    )
    settings = trial.selector
    return fit_selection(look_up, ordinary, strange, floor, settings, trial.seed, OUTLIERS_WEIGHT)


def _fit(
    network: nn.Module,
    hidden: torch.Tensor,
    teacher: torch.Tensor,
    outliers: torch.Tensor,
    trial: Trial,
) -> None:
    """What is in front of the last layer is computed once where it learns nothing."""
    last = last_layer(network)
    learning = sum(parameter.numel() for parameter in network.parameters())
    if learning > sum(parameter.numel() for parameter in last.parameters()):
        settings, labels = trial.predictor, teacher.argmax(1)
        return train_predictor(network, hidden, teacher, labels, outliers, settings, trial.seed)
    with torch.no_grad():
        features, strange = features_of(network, hidden), features_of(network, outliers)
    return fit_last_layer(last, features, teacher, strange, trial.predictor, trial.seed)


def tensor_of(hidden: np.ndarray, rows: np.ndarray) -> torch.Tensor:
    """Rows of a mapped file as a tensor of its own."""
    order = np.argsort(rows)
    picked = np.empty((len(rows), *hidden.shape[1:]), hidden.dtype)
    for start in range(0, len(rows), READ_ROWS):
        places = order[start : start + READ_ROWS]
        picked[places] = hidden[rows[places]]
    return torch.from_numpy(picked)


def evaluate(network: LookUp, hidden: torch.Tensor, answers: np.ndarray) -> Scored:
    """One exit on rows of which the base model gives ``answers``, classes int64 [rows]."""
    return decided(network, predict(network, hidden, torch.from_numpy(answers)))


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
    with ProcessPoolExecutor(
        jobs, mp_context=context, initializer=lower_thread, initargs=(TRAINING,)
    ) as pool:
        for future in as_completed([pool.submit(run_trial, trial) for trial in trials]):
            future.result()
            advance()


def measure_trials(
    trials: Sequence[Trial],
    points: Sequence[ExitPoint],
    collected: Collected,
    division: Division,
    between: Between,
    progress: Progress,
) -> list[Tried]:
    """Trained variants, in the same order: their look-ups on this machine, ``between`` runs of the
    model, and their answers on rows that did not train them."""
    tried: list[Tried] = []
    places = {point.position: index for index, point in enumerate(points)}
    answers = collected.teacher.argmax(1)
    classes = collected.teacher.shape[1]
    for trial in trials:
        index = places[trial.position]
        hidden = collected.hidden[index]
        shape = tuple(hidden.shape[1:])
        network = empty_look_up(trial.variant, shape, classes)
        load_weights(network, read_container(trial.file).tensors)
        one = np.array(hidden[:1])
        model = export_look_up(network, shape, trial.variant)
        tune, held_out = (
            evaluate(network, tensor_of(hidden, rows), answers[rows])
            for rows in (division.tune, division.calibrate)
        )
        tried.append(
            Tried(
                point=index,
                variant=trial.variant,
                lookup_s=look_up_seconds(LookUpModel(model, shape, classes), one, between),
                model=model,
                memory_bytes=2 * len(model) + one.nbytes,
                shape=shape,
                tune=tune,
                held_out=held_out,
            )
        )
        progress.advance()
    return tried
