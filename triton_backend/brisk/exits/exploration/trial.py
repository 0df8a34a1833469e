"""One cell of the exploration: a variant at a point, trained and kept in a file of its own."""

from __future__ import annotations

import itertools
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
    GatedMarginLookUp,
    LookUp,
    PlainLookUp,
    Predicted,
    SelectedLookUp,
    Selector,
    decided,
    empty_look_up,
    load_weights,
    predict,
    weights_of,
)
from brisk.exits.heads.lookup_model import Judge, LookUpModel
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

METHOD = 5
"""Counts what a trial's settings do not tell: 5, shapes are among the outliers. What
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
    look_up = SelectedLookUp(settled(network), Selector(classes), gate)
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
    judges: Sequence[Judge],
    progress: Progress,
) -> list[Tried]:
    """Trained variants, in the same order: their look-ups on this machine, ``between`` runs of the
    model, and their answers on rows that did not train them."""
    tried: list[Tried] = []
    places = {point.position: index for index, point in enumerate(points)}
    answers = collected.teacher.argmax(1)
    classes = collected.teacher.shape[1]
    for position, of_point in itertools.groupby(trials, key=lambda trial: trial.position):
        hidden = collected.hidden[places[position]]
        shape, one = tuple(hidden.shape[1:]), np.array(hidden[:1])
        parts: list[tuple[torch.Tensor, torch.Tensor]] = []
        for trial in of_point:
            if not parts:
                parts = [
                    (tensor_of(hidden, rows), torch.from_numpy(wanted))
                    for rows, wanted in (
                        (division.tune, answers[division.tune]),
                        (division.calibrate, answers[division.calibrate]),
                        (division.select, answers[division.select]),
                        _kept_outliers(trial.folder),
                    )
                ]
            selected = empty_look_up(trial.variant, shape, classes)
            assert isinstance(selected, SelectedLookUp), "as it is trained"
            load_weights(selected, read_container(trial.file).tensors)
            tune, held_out, select, kept = (predict(selected, *part) for part in parts)
            taken_s: dict[bool, float] = {}
            for network in _judged(selected, judges, select, kept):
                model = export_look_up(network, shape, trial.variant)
                is_gated = network.judge.is_gated  # that apart they differ by microseconds
                if is_gated not in taken_s:
                    ready = LookUpModel(model, shape, classes)
                    taken_s[is_gated] = look_up_seconds(ready, one, between)
                tried.append(
                    Tried(
                        point=places[position],
                        variant=trial.variant,
                        judge=network.judge,
                        lookup_s=taken_s[is_gated],
                        model=model,
                        memory_bytes=2 * len(model) + one.nbytes,
                        shape=shape,
                        tune=decided(network, tune),
                        held_out=decided(network, held_out),
                    )
                )
            progress.advance()
    return tried


def _judged(
    selected: SelectedLookUp, judges: Sequence[Judge], rows: Predicted, outliers: Predicted
) -> list[LookUp]:
    """The same predictor with each judge. Where there are no outliers to take a floor from, every
    one is behind the gate."""
    found: list[LookUp] = [selected] if Judge.SELECTOR in judges else []
    for judge in judges:
        network: LookUp
        if judge is Judge.SELECTOR or not (len(outliers.classes) or judge.is_gated):
            continue
        if judge is Judge.GATED_MARGIN:
            network = GatedMarginLookUp(selected.predictor, selected.gate)
        else:
            network = PlainLookUp(selected.predictor, judge)
        if len(outliers.classes):
            network.set_floor(rows, outliers)
        found.append(network.eval().requires_grad_(False))
    return found


def _kept_outliers(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Rows of those for floors, and their kinds."""
    with np.load(folder / "rows.npz") as rows:
        is_kept = rows["meant"] == KEPT
        return rows["outliers"][is_kept], rows["kinds"][is_kept]
