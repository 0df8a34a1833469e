"""One trial of the exploration: a variant at a point, trained into a separate file."""

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

from brisk.exits.data.collecting import Collected, hidden_file, summary_file
from brisk.exits.data.outliers import FOR_FLOOR, FOR_PREDICTOR, FOR_SELECTOR
from brisk.exits.data.samples import Division
from brisk.exits.exploration.composition import Tried
from brisk.exits.exploration.measuring import Between, evaluation_seconds
from brisk.exits.exploration.settings import Progress
from brisk.exits.exploration.stored import StoredRows, read_rows
from brisk.exits.files.container import DamagedFileError, read_container, write_container
from brisk.exits.guarantee.calibration import Scored
from brisk.exits.heads.distance_gate import DistanceGate
from brisk.exits.heads.exit_head import (
    ExitHead,
    GatedMarginHead,
    PlainHead,
    Predicted,
    SelectedHead,
    Selector,
    decided,
    empty_head,
    load_weights,
    predict,
    weights_of,
)
from brisk.exits.heads.exit_model import AnswerForm, ExitModel, Judge, Shape
from brisk.exits.heads.predictors import settled, variant
from brisk.exits.learning.exporting import export_head
from brisk.exits.learning.predictor import (
    PredictorSettings,
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
from brisk.exits.scores import classes_of
from brisk.os_priority import TRAINING, lower_thread

METHOD = 7
"""The version of the training itself, which a trial's settings do not contain. Files of another
version are trained again."""

GATE_ROWS = 4096
"""The most rows that the gate is fitted to."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A variant to train from files, so that any process can do it.

    ``folder`` holds what ``collect`` has written, and ``rows.npz`` (see ``explore``).
    ``reduced_from``: the shape of the hidden outputs, if only what the variant reads of them is
    stored; None: they are.
    """

    folder: Path
    position: int
    variant: str
    predictor: PredictorSettings
    selector: SelectorSettings
    seed: int
    reduced_from: Shape | None = None

    @property
    def file(self) -> Path:
        return self.folder / f"trial-{self.position}-{self.variant}.caches"


def is_done(trial: Trial) -> bool:
    """Whether an earlier run has trained the trial with the same settings."""
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
    """Train and write the trial's file, unless an earlier run did so with the same settings."""
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


def _train(trial: Trial) -> ExitHead:
    hidden = np.load(hidden_file(trial.folder, trial.position), mmap_mode="r")
    summaries, shape = None, trial.reduced_from
    if shape is None:
        shape = tuple(hidden.shape[1:])
    else:
        summaries = np.load(summary_file(trial.folder, trial.position), mmap_mode="r")
    teacher = np.load(trial.folder / "teacher.npy")
    with np.load(trial.folder / "rows.npz") as rows:
        fit, select = rows["fit"], rows["select"]
        outliers, kinds, uses = rows["outliers"], rows["kinds"], rows["meant"]
    classes = teacher.shape[1]
    fitting = read_rows(hidden, summaries, fit)
    distribution = torch.tensor(teacher[fit])
    network = variant(trial.variant).build(shape, classes)
    exposed = read_rows(hidden, summaries, outliers[uses == FOR_PREDICTOR])
    _fit(network, fitting, distribution, exposed, trial)
    summary = fitting.summary(GATE_ROWS)
    gate = DistanceGate(summary.shape[1], classes)
    # Both draw random numbers: another order of the two would be another METHOD.
    head = SelectedHead(settled(network), Selector(classes), gate)
    gate.fit(summary, distribution[:GATE_ROWS].argmax(1))

    def predicted(rows: np.ndarray, labels: np.ndarray) -> Predicted:
        return read_rows(hidden, summaries, rows).predicted(head, labels)

    for_selector = outliers[uses == FOR_SELECTOR]
    return fit_selection(
        head,
        predicted(select, teacher[select].argmax(1)),
        predicted(for_selector, teacher[for_selector].argmax(1)),
        predicted(outliers[uses == FOR_FLOOR], kinds[uses == FOR_FLOOR]),
        trial.selector,
        trial.seed,
        OUTLIERS_WEIGHT,
    )


def _fit(
    network: nn.Module,
    rows: StoredRows,
    teacher: torch.Tensor,
    outliers: StoredRows,
    trial: Trial,
) -> None:
    """Fit the predictor; features in front of its last layer are computed once if only that has
    parameters."""
    last = last_layer(network)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    if parameters > sum(parameter.numel() for parameter in last.parameters()):
        settings, labels = trial.predictor, teacher.argmax(1)
        hidden, exposed = rows.values, outliers.values
        return train_predictor(network, hidden, teacher, labels, exposed, settings, trial.seed)
    with torch.no_grad():
        features, exposed = rows.features(network), outliers.features(network)
    return fit_last_layer(last, features, teacher, exposed, trial.predictor, trial.seed)


def evaluate(network: ExitHead, hidden: torch.Tensor, answers: np.ndarray) -> Scored:
    """Score one exit on rows for which the base model gives ``answers``, classes int64 [rows]."""
    return decided(network, predict(network, hidden, torch.from_numpy(answers)))


def run_trials(trials: Sequence[Trial], jobs: int, advance: Callable[[], None]) -> None:
    """Run all trials. Raises the error of the first that fails.

    The order of completion does not matter: each trial has its seed and its file.
    """
    missing = [trial for trial in trials if not is_done(trial)]
    for _ in range(len(trials) - len(missing)):
        advance()
    if jobs <= 1 or len(missing) <= 1:
        for trial in missing:
            run_trial(trial)
            advance()
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        jobs, mp_context=context, initializer=lower_thread, initargs=(TRAINING,)
    ) as pool:
        for future in as_completed([pool.submit(run_trial, trial) for trial in missing]):
            future.result()
            advance()


def measure_trials(
    trials: Sequence[Trial],
    points: Sequence[ExitPoint],
    collected: Collected,
    division: Division,
    *,
    between: Between,
    judges: Sequence[Judge],
    progress: Progress,
) -> list[Tried]:
    """Return the trained variants, in the same order, measured on this machine.

    Evaluations are timed ``between`` runs of the model; answers are those to rows that did not
    train the variants.
    """
    tried: list[Tried] = []
    judged = _judged_by(collected, division, trials[0].folder) if trials else []
    places = {point.position: index for index, point in enumerate(points)}
    for position, of_point in itertools.groupby(trials, key=lambda trial: trial.position):
        point = places[position]
        hidden, summaries = collected.hidden[point], collected.summaries[point]
        rows = [(read_rows(hidden, summaries, numbers), labels) for numbers, labels in judged]
        for trial in of_point:
            tried += _measured(trial, point, collected, rows, between, judges)
            progress.advance()
        del rows  # before the next point's take as much memory
    return tried


def _judged_by(
    collected: Collected, division: Division, folder: Path
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the numbers of rows that have not trained the predictors, with the base model's
    classes of them: those to tune and to prove with, and for selectors; and last the outliers for
    floors, with their kinds."""
    answers = classes_of(collected.teacher)
    with np.load(folder / "rows.npz") as rows:
        is_for_floor = rows["meant"] == FOR_FLOOR
        outliers = rows["outliers"][is_for_floor], rows["kinds"][is_for_floor]
    parts = (division.tune, division.calibrate, division.select)
    return [*((part, answers[part]) for part in parts), outliers]


def _measured(
    trial: Trial,
    point: int,
    collected: Collected,
    rows: Sequence[tuple[StoredRows, np.ndarray]],
    between: Between,
    judges: Sequence[Judge],
) -> list[Tried]:
    """Return a trained variant with each judge; ``rows``: those of ``_judged_by``."""
    first, classes = collected.firsts[point], collected.teacher.shape[1]
    shape = tuple(first.shape[1:])
    selected = empty_head(trial.variant, shape, classes)
    assert isinstance(selected, SelectedHead), "as it is trained"
    load_weights(selected, read_container(trial.file).tensors)
    tune, held_out, select, outliers = (
        hidden.predicted(selected, labels) for hidden, labels in rows
    )
    tried = []
    evaluation_s: dict[bool, float] = {}
    for network in _judged(selected, judges, select, outliers):
        model = export_head(network, shape, trial.variant)
        is_gated = network.judge.is_gated  # apart from that they differ by microseconds
        if is_gated not in evaluation_s:
            ready = ExitModel(model, shape, AnswerForm(classes))
            evaluation_s[is_gated] = evaluation_seconds(ready, first, between)
        tried.append(
            Tried(
                point=point,
                variant=trial.variant,
                judge=network.judge,
                evaluation_s=evaluation_s[is_gated],
                model=model,
                memory_bytes=2 * len(model) + first.nbytes,
                shape=shape,
                tune=decided(network, tune),
                held_out=decided(network, held_out),
            )
        )
    return tried


def _judged(
    selected: SelectedHead, judges: Sequence[Judge], rows: Predicted, outliers: Predicted
) -> list[ExitHead]:
    """Return the same predictor with each judge; with only those behind the gate if there are no
    outliers to take a floor from."""
    networks: list[ExitHead] = [selected] if Judge.SELECTOR in judges else []
    for judge in judges:
        network: ExitHead
        if judge is Judge.SELECTOR or not (len(outliers.classes) or judge.is_gated):
            continue
        if judge is Judge.GATED_MARGIN:
            network = GatedMarginHead(selected.predictor, selected.gate)
        else:
            network = PlainHead(selected.predictor, judge)
        if len(outliers.classes):
            network.set_floor(rows, outliers)
        networks.append(network.eval().requires_grad_(False))
    return networks
