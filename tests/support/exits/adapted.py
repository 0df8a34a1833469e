"""Caches of a digits network, and traffic unlike what they were trained with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch

from brisk.exits.adaptation.reference import ReferenceData, write_reference
from brisk.exits.base_model import BaseModel, load_graph, taps_of
from brisk.exits.cascade import Cascade, Exit, Expected, Level
from brisk.exits.cascade_file import digest_of, write_cascade
from brisk.exits.data.collecting import Collected, collect
from brisk.exits.data.outliers import make_outliers
from brisk.exits.data.samples import Samples, divide
from brisk.exits.exploration.stored import tensor_of
from brisk.exits.exploration.trial import Trial, evaluate, run_trial
from brisk.exits.files.container import read_container
from brisk.exits.guarantee.calibration import CascadeCount, Promise, in_order
from brisk.exits.guarantee.proposals import calibrate
from brisk.exits.heads.exit_head import ExitHead, empty_head, load_weights
from brisk.exits.heads.exit_model import AnswerForm
from brisk.exits.learning.exporting import export_head
from brisk.exits.learning.predictor import PredictorSettings
from brisk.exits.learning.selection import SelectorSettings
from brisk.exits.model_graph import ExitPoint, exit_points, read_graph
from brisk.exits.scores import find_scores
from brisk_bench.samples.digits import DigitsRecipe, digits_split, train_digits


@dataclass(frozen=True, slots=True, eq=False)
class Adapted:
    """A digits network that is served with caches."""

    model_file: Path
    """The model, its caches and reference beside it."""
    base: BaseModel
    cascade: Cascade
    reference: ReferenceData
    images: np.ndarray
    """All digits, float32 [1797, 1, 8, 8]."""
    labels: np.ndarray

    def drifted(self, classes: tuple[int, ...] = (7, 8, 9)) -> np.ndarray:
        """Return digits of some classes only, brighter on the left than on the right."""
        chosen = self.images[np.isin(self.labels, classes)]
        shade = np.linspace(1.0, 0.55, 8, dtype=np.float32)
        return np.clip(chosen * shade + 1.5, 0, 16).astype(np.float32)


def train_caches(
    base: BaseModel,
    caches: Mapping[ExitPoint, str],
    samples: Samples,
    fit: np.ndarray,
    select: np.ndarray,
    folder: Path,
) -> tuple[Collected, list[tuple[Trial, ExitHead]]]:
    """Train a variant at each point with the rows ``fit`` and ``select`` of images. Return what
    the model, which stops at the points, makes of all of them; and the trained heads."""
    outliers = make_outliers(samples.take(select), 0)
    rows = [samples, outliers.samples]
    collected = collect(base, list(caches), find_scores(base.graph), rows, folder)
    np.savez(
        folder / "rows.npz",
        fit=fit,
        select=select,
        outliers=np.arange(len(samples), len(samples) + len(outliers)),
        kinds=outliers.kinds,
        meant=outliers.uses,
    )
    trained = []
    for (point, name), hidden in zip(caches.items(), collected.hidden, strict=True):
        settings = PredictorSettings(epochs=25), SelectorSettings()
        run_trial(trial := Trial(folder, point.position, name, *settings, seed=0))
        network = empty_head(name, tuple(hidden.shape[1:]), 10)
        load_weights(network, read_container(trial.file).tensors)
        trained.append((trial, network))
    return collected, trained


def make_adapted(folder: Path) -> Adapted:
    torch.set_num_threads(1)  # as where caches learn
    model = train_digits("digits", DigitsRecipe((16,) * 5, pooled=2, epochs=6, seed=0))
    file = folder / "model.onnx"
    onnx.save(model, file)
    graph = read_graph(file)
    scores = find_scores(graph)
    points = exit_points(graph, scores.position)
    points = (points[1], points[-2])
    base = load_graph(graph, taps=taps_of(points, scores, graph))
    split = digits_split()
    images = np.concatenate([split.train_images, split.test_images])
    labels = np.concatenate([split.train_labels, split.test_labels])
    samples = Samples({"image": images})
    division = divide(samples, 0)
    caches = dict.fromkeys(points, "Pool(4096)")
    collected, trained = train_caches(base, caches, samples, division.fit, division.select, folder)
    exits, tune, held_out = [], [], []
    for (trial, network), point, hidden, saved_s in zip(
        trained, points, collected.hidden, (2e-3, 5e-4), strict=True
    ):
        shape = tuple(hidden.shape[1:])
        model = export_head(network, shape, trial.variant)
        exits.append(Exit(point, trial.variant, shape, AnswerForm(10), model, 1e-4, 1000, saved_s))
        for rows, parts in ((division.tune, tune), (division.calibrate, held_out)):
            answers = collected.teacher[rows].argmax(1)
            parts.append(evaluate(network, tensor_of(hidden, rows), answers))

    def answered(count: CascadeCount) -> float:
        return sum(one.answered for one in count.exits)

    proof = calibrate(in_order(tune), in_order(held_out), Promise(0.95, 0.9), answered)
    assert proof is not None
    level = Level(0.95, proof.thresholds, proof.count)
    cascade = Cascade(
        digest_of(file), scores, tuple(exits), (level,), 0.9, Expected(3e-3, 1e-3), True
    )
    write_cascade(file.with_suffix(".caches"), cascade)
    reference = write_reference(file.with_suffix(".reference"), digest_of(file), samples, division)
    return Adapted(file, base, cascade, reference, images, labels)
