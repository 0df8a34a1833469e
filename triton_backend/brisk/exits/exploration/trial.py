"""One cell of the exploration: a variant at a point, trained and kept in a file of its own."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from brisk.exits.building import weights_of
from brisk.exits.container import DamagedFileError, read_container, write_container
from brisk.exits.gate import DistanceGate, summary
from brisk.exits.learning.predictor import train_predictor
from brisk.exits.learning.selector import train_selector
from brisk.exits.learning.settings import PredictorSettings, SelectorSettings
from brisk.exits.lookup import LookUp, Selector
from brisk.exits.outliers import CLEAR_SHARE
from brisk.exits.variants import variant

EVALUATED_ROWS = 256

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


def run_trial(trial: Trial) -> Path:
    """Train and write; does nothing where an earlier run has done it with the same settings."""
    marker = {
        "predictor": asdict(trial.predictor),
        "selector": asdict(trial.selector),
        "seed": trial.seed,
    }
    try:
        if read_container(trial.file).header == marker:
            return trial.file
    except (OSError, DamagedFileError):
        pass
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(trial.seed)
            network = _train(trial)
    finally:
        torch.set_num_threads(threads)
    write_container(trial.file, marker, weights_of(network))
    return trial.file


def _train(trial: Trial) -> LookUp:
    hidden = np.load(trial.folder / f"hidden-{trial.position}.npy", mmap_mode="r")
    teacher = np.load(trial.folder / "teacher.npy")
    with np.load(trial.folder / "rows.npz") as rows:
        fit, select, outliers = rows["fit"], rows["select"], rows["outliers"]
    classes = teacher.shape[1]
    kind = variant(trial.variant)
    fit_hidden = tensor_of(hidden, fit)
    distribution = torch.tensor(teacher[fit])
    network = kind.build(tuple(hidden.shape[1:]), classes)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
        train_predictor(
            network, fit_hidden, distribution, distribution.argmax(1), trial.predictor, trial.seed
        )
        predictor = kind.settle(network)
        clear = outliers[: int(len(outliers) * CLEAR_SHARE)]
        learned, kept = outliers[::2], clear[1::2]
        rows = np.concatenate([select, learned])
        select_hidden = tensor_of(hidden, rows)
        logits = predict(predictor, select_hidden)
        agrees = logits.argmax(1) == torch.tensor(teacher[rows].argmax(1))
        agrees[len(select) :] = False
        selector = Selector(classes)
        train_selector(selector, logits, agrees.float(), trial.selector, trial.seed)
    gate = DistanceGate(summary(fit_hidden[:1]).shape[1])
    gate.fit(fit_hidden[:GATE_ROWS])
    gate.set_limit(select_hidden[: len(select)])
    network = LookUp(predictor, selector, gate).eval().requires_grad_(False)
    if len(kept):
        network.set_floor(tensor_of(hidden, kept))
    return network


def tensor_of(hidden: np.ndarray, rows: np.ndarray) -> torch.Tensor:
    """Rows of a mapped file as a tensor of its own."""
    order = np.sort(rows)
    picked = np.ascontiguousarray(hidden[order])
    return torch.from_numpy(picked[np.argsort(np.argsort(rows))])


def predict(predictor: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """Logits of all rows, as a tensor that training may read."""
    with torch.no_grad():
        return torch.cat([predictor(part) for part in _parts(hidden)])


def _parts(hidden: torch.Tensor) -> list[torch.Tensor]:
    return [
        hidden[start : start + EVALUATED_ROWS] for start in range(0, len(hidden), EVALUATED_ROWS)
    ]


def evaluate(network: LookUp, hidden: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Predicted class int64 [rows] and score float32 [rows]."""
    classes, scores = [], []
    with torch.inference_mode():
        for part in _parts(hidden):
            logits, score = network(part)
            classes.append(logits.argmax(1).numpy())
            scores.append(score.numpy())
    return np.concatenate(classes), np.concatenate(scores)
