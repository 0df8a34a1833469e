"""Caches trained on real digits: they agree, they keep their promise, noise does not fool them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from brisk.exits.base_model import BaseModel, load_graph, run_base, taps_of
from brisk.exits.data.collecting import bind_rows
from brisk.exits.data.outliers import MAKERS, ROWS_OF_A_KIND, make_outliers
from brisk.exits.data.samples import Samples, divide
from brisk.exits.exploration.stored import tensor_of
from brisk.exits.exploration.trial import Trial, evaluate, run_trial
from brisk.exits.guarantee.calibration import (
    CascadeCount,
    Promise,
    Scored,
    count_cascade,
    in_order,
    upper_bound,
)
from brisk.exits.guarantee.proposals import calibrate, threshold_for
from brisk.exits.heads.exit_head import ExitHead
from brisk.exits.heads.predictors import CATALOGUE, settled, variant
from brisk.exits.learning.predictor import PredictorSettings, distillation_loss
from brisk.exits.model_graph import ExitPoint, exit_points
from brisk.exits.scores import Scores, find_scores
from brisk_bench.samples.digits import DigitsRecipe, digits_split, train_digits
from support.exits.adapted import train_caches
from support.exits.cascades import graph_of
from support.exits.losses import asymmetric_loss

FIT, SELECT = 700, 200


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """Two caches of a digits network; ``scored`` and ``order`` are of the rows not trained on."""

    base: BaseModel
    points: tuple[ExitPoint, ...]
    scores: Scores
    samples: Samples
    trials: tuple[Trial, ...]
    networks: tuple[ExitHead, ...]
    unseen: np.ndarray
    scored: Scored


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("trials")
    model = train_digits("digits", DigitsRecipe((16,) * 5, pooled=2, epochs=6, seed=0))
    graph = graph_of(model)
    scores = find_scores(graph)
    points = exit_points(graph, scores.position)
    points = (points[2], points[-2])
    base = load_graph(graph, taps=taps_of(points, scores, graph))
    split = digits_split()
    images = np.concatenate([split.train_images, split.test_images])
    order = np.random.default_rng(0).permutation(len(images))
    samples = Samples({"image": images[order]})
    fit, select, unseen = np.split(np.arange(len(samples)), [FIT, FIT + SELECT])
    caches = dict(zip(points, ("Conv2(3,2)", "Pool(4096)"), strict=True))
    collected, made = train_caches(base, caches, samples, fit, select, folder)
    trials, networks = zip(*made, strict=True)
    answers = collected.teacher[unseen].argmax(1)
    looked = [
        evaluate(network, tensor_of(hidden, unseen), answers)
        for network, hidden in zip(networks, collected.hidden, strict=True)
    ]
    return Trained(base, points, scores, samples, trials, networks, unseen, in_order(looked))


def answered(count: CascadeCount) -> float:
    return sum(exit_count.answered for exit_count in count.exits)


def test_predictors_agree_with_the_model_on_inputs_they_have_not_seen(trained: Trained) -> None:
    early, late = trained.scored.right.mean(1)
    assert early > 0.85
    assert late > 0.9


def test_the_promise_holds_in_repeated_calibrations_on_digits(trained: Trained) -> None:
    """100 draws of calibration rows; broken is what the rest of the rows refutes."""
    promise = Promise(0.95, 0.90)
    random = np.random.default_rng(0)
    proved = broken = 0
    for _ in range(100):
        rows = random.permutation(len(trained.unseen))
        tune, held_out, rest = np.split(rows, [200, 550])
        calibration = calibrate(_part(trained, tune), _part(trained, held_out), promise, answered)
        if calibration is None:
            continue
        proved += 1
        count = count_cascade(_part(trained, rest), calibration.thresholds)
        for exit_count in count.exits:
            most = upper_bound(exit_count.right, exit_count.answered, 0.99)
            if exit_count.answered and most < promise.accuracy:
                broken += 1
                break
    assert proved >= 60
    assert broken <= 10


def _part(trained: Trained, rows: np.ndarray) -> Scored:
    return trained.scored.take(rows)


def checkerboard(count: int) -> np.ndarray:
    """No outlier of training is like it."""
    board = np.indices((8, 8)).sum(0) % 2 * 16.0
    return np.repeat(board[None, None], count, 0).astype(np.float32)


def waves(count: int) -> np.ndarray:
    """Smooth, and nothing like a digit; no outlier of training is like it either."""
    random = np.random.default_rng(4)
    rows, columns = np.indices((8, 8))
    steps = random.uniform(0.5, 1.5, (count, 2, 1, 1))
    phase = random.uniform(0, 6, (count, 1, 1))
    pictures = 8 + 8 * np.sin(steps[:, 0] * rows + phase) * np.cos(steps[:, 1] * columns)
    return pictures[:, None].astype(np.float32)


@pytest.mark.parametrize("kind", ["negative", "checkerboard", "waves", "far too bright", "noise"])
def test_inputs_unlike_the_data_are_hardly_ever_answered_early(
    trained: Trained, kind: str
) -> None:
    """Neither exit alone answers them, nor the two as a cascade."""
    real = trained.samples.inputs["image"][trained.unseen[:200]]
    strange = {
        "negative": 16 - real,
        "checkerboard": checkerboard(200),
        "waves": waves(200),
        "far too bright": real * 6,
        "noise": np.random.default_rng(9).uniform(0, 16, real.shape).astype(np.float32),
    }[kind]
    inputs = bind_rows(Samples({"image": strange}))
    hidden, teacher = run_base(trained.base, trained.points, trained.scores, inputs)
    answers = teacher.argmax(1)
    looked = [
        evaluate(network, torch.tensor(values), answers)
        for network, values in zip(trained.networks, hidden, strict=True)
    ]
    thresholds = [
        threshold_for(scores, right, 0.97)
        for scores, right in zip(trained.scored.scores, trained.scored.right, strict=True)
    ]
    answered_early = sum(
        exit_count.answered for exit_count in count_cascade(in_order(looked), thresholds).exits
    )
    assert answered_early <= 0.05 * len(strange)
    for one, threshold in zip(looked, thresholds, strict=True):
        assert (one.scores >= threshold).mean() <= 0.05


def test_ordinary_inputs_are_answered_by_either_exit(trained: Trained) -> None:
    """Else it would be easy to leave out-of-distribution ones alone."""
    for scores, right in zip(trained.scored.scores, trained.scored.right, strict=True):
        assert (scores >= threshold_for(scores, right, 0.97)).mean() > 0.8


def test_a_finished_trial_is_not_run_again(trained: Trained) -> None:
    trial = trained.trials[0]
    before = trial.file.stat().st_mtime_ns
    run_trial(trial)
    assert trial.file.stat().st_mtime_ns == before


def test_an_interrupted_trial_is_run_again_and_gives_the_same(trained: Trained) -> None:
    trial = trained.trials[1]
    before = trial.file.read_bytes()
    trial.file.write_bytes(before[: len(before) // 2])
    run_trial(trial)
    assert trial.file.read_bytes() == before


@pytest.mark.parametrize("name", [one.name for one in CATALOGUE])
@pytest.mark.parametrize("shape", [(24,), (6, 16), (8, 10, 12)])
def test_a_settled_variant_computes_what_the_trained_one_did(
    name: str, shape: tuple[int, ...]
) -> None:
    kind = variant(name)
    if not kind.applies(shape):
        assert name.startswith("Conv")
        return
    torch.manual_seed(0)
    network = kind.build(shape, 5)
    hidden = torch.rand(6, *shape)
    network(hidden)  # batch normalisations learn something
    expected = network.eval()(hidden)
    served = settled(network)
    torch.testing.assert_close(served(hidden), expected, rtol=1e-4, atol=1e-5)
    fresh = kind.build(shape, 5, normalised=False)
    fresh.load_state_dict(served.state_dict())
    torch.testing.assert_close(fresh(hidden), expected, rtol=1e-4, atol=1e-5)


def test_false_hits_cost_more_than_false_misses() -> None:
    wrong, right = torch.tensor([0.0]), torch.tensor([1.0])
    score, one = torch.tensor([2.0]), torch.ones(1)
    false_hit, false_miss = (
        asymmetric_loss(score, wrong, one, 4.0),
        asymmetric_loss(-score, right, one, 4.0),
    )
    assert float(false_hit) == pytest.approx(4 * float(false_miss))


def test_distillation_is_least_where_the_student_says_what_the_teacher_says() -> None:
    teacher = torch.tensor([[0.7, 0.2, 0.1]])
    labels = torch.tensor([0])
    settings = PredictorSettings(soft_share=1.0)
    same = distillation_loss(teacher.log(), teacher, labels, settings)
    other = distillation_loss(teacher.flip(1).log(), teacher, labels, settings)
    assert float(same) == pytest.approx(0, abs=1e-5)
    assert other > same + 0.1


def test_outliers_are_of_every_kind_and_leave_integers_alone() -> None:
    random = np.random.default_rng(0)
    samples = Samples(
        {
            "image": random.uniform(0, 1, (50, 3, 4, 4)).astype(np.float32),
            "length": np.arange(50),
        }
    )
    outliers = make_outliers(samples, 0)
    made_up = outliers.samples
    assert np.bincount(outliers.kinds).tolist() == [ROWS_OF_A_KIND] * len(MAKERS)
    assert len(made_up) == len(outliers)
    assert set(made_up.inputs["length"]) <= set(range(50))
    strange = made_up.inputs["image"].reshape(len(made_up), -1)
    real = samples.inputs["image"].reshape(50, -1)
    nearest = np.abs(strange[:, None] - real[None]).max(2).min(1)
    assert (nearest > 0.05).all(), "none of them is a sample"


@pytest.mark.parametrize("shape", [(), (4,), (5, 4), (3, 5, 4)])
def test_outliers_are_made_of_constant_rows_of_any_rank(shape: tuple[int, ...]) -> None:
    outliers = make_outliers(Samples({"x": np.ones((60, *shape), np.float32)}), 0)
    assert outliers.samples.inputs["x"].shape == (len(MAKERS) * ROWS_OF_A_KIND, *shape)
    assert np.isfinite(outliers.samples.inputs["x"]).all()


@pytest.mark.parametrize(("other_rows", "calibrate"), [(0, 200), (999, 200), (1000, 380)])
def test_a_division_leaves_no_row_out_and_proves_with_more_where_others_fit(
    other_rows: int, calibrate: int
) -> None:
    rows = {"x": np.random.default_rng(0).normal(0, 1, (1000 + other_rows, 3))}
    samples = Samples(rows)
    more = samples.take(slice(1000, None)) if other_rows else None
    parts = divide(samples.take(slice(1000)), 0, more)
    assert len(parts.more) == other_rows
    every = np.concatenate([parts.fit, parts.select, parts.tune, parts.calibrate])
    assert sorted(every) == list(range(1000))
    assert len(parts.calibrate) == calibrate
