"""The pipeline benchmark's pictures, networks and planners; networks untrained, to be quick."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx.reference import ReferenceEvaluator
from torch import nn

from brisk.exits.data.samples import Samples
from brisk_bench import pipeline
from brisk_bench.harness.report import Report
from brisk_bench.pipeline import networks
from brisk_bench.pipeline import planners as pipeline_planners
from brisk_bench.pipeline.planners import PLANNERS, load_bench
from brisk_bench.pipeline.scenes import DIGITS, SHAPES, ScenePart, digits_of, draw, make_scenes

pytestmark = [pytest.mark.timing, pytest.mark.beside]

HOUR_NS = 3_600_000_000_000


def test_scenes_are_the_same_every_time_and_of_both_kinds() -> None:
    once, again = (make_scenes(40, seed=5, part=ScenePart.MEASURED) for _ in range(2))
    np.testing.assert_array_equal(once.images, again.images)
    assert set(once.kinds) == {0, 1}
    np.testing.assert_array_equal(once.kinds, (once.labels >= DIGITS).astype(int))
    assert once.labels.max() < DIGITS + len(SHAPES)


def test_requests_show_digits_that_neither_trained_nor_validated_a_network() -> None:
    pictures = [{image.tobytes() for image in digits_of(part)[0]} for part in ScenePart]
    assert sum(map(len, pictures)) == len(set().union(*pictures))
    assert all(len(part) > 150 for part in pictures)


def rows_of(gains: list[tuple[float, float]]) -> list[dict[str, object]]:
    """Of each setting the static and the incremental planner's row."""
    made: list[dict[str, object]] = []
    for number, (points, latency) in enumerate(gains):
        setting = {"policy": "equal", "objective_ms": number}
        made.append({**setting, "planner": "static", "accuracy": 0.8})
        made.append(
            {
                **setting,
                "planner": "incremental",
                "accuracy": 0.9,
                "accuracy_gain_points": points,
                "latency_gain": latency,
            }
        )
    return made


def test_one_good_setting_among_many_passes_no_check() -> None:
    """The best of all settings would say what was lucky."""
    told = networks.TrainedNetworks(Path(), {}, Samples({"image": np.zeros((1, 1))}), "")
    poor, good = (0.2, 1.1), (5.0, 2.0)
    for gains, holds in (([poor, poor, good], False), ([good, good, poor], True)):
        report = Report("pipeline", {}, {}, rows_of(gains), [])
        pipeline.check_settings(report, told)
        median = [check for check in report.checks if "median of all 3" in check.name]
        assert [check.ok for check in median] == [holds, holds]
        assert [check.value for check in median] == list(good if holds else poor)


def test_every_shape_is_drawn_unlike_the_others() -> None:
    drawn = [draw(shape, np.random.default_rng(0)) for shape in SHAPES]
    assert all(0 < stamp.mean() < 0.7 for stamp in drawn)
    assert len({stamp.tobytes() for stamp in drawn}) == len(SHAPES)


def test_a_written_network_answers_as_torch_does() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    ).eval()
    images = make_scenes(3, seed=1, part=ScenePart.TRAINED).images
    written = networks.network_as_onnx("n", network, 3)
    (answer,) = ReferenceEvaluator(written).run(None, {"image": images})
    with torch.inference_mode():
        expected = network(torch.from_numpy(images)).softmax(1).numpy()
    np.testing.assert_allclose(answer, expected, rtol=1e-3, atol=1e-5)


def test_planners_with_the_same_variants_answer_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_planners, "WARM_UP", 2)
    images = make_scenes(8, seed=1, part=ScenePart.TRAINED).images
    accuracies: dict[str, dict[str, float]] = {}
    for task, classes in {networks.PLATE: 10, **networks.TASKS}.items():
        accuracies[task] = {}
        for rank, size in enumerate(networks.EPOCHS.get(task, ("small", "large"))):
            layers = networks.CLASSIFIERS[size]
            trained = networks.train_network(layers, classes, images, np.zeros(8, np.int64), 1)
            written = networks.network_as_onnx(size, trained, classes)
            onnx.save(written, tmp_path / f"{task}_{size}.onnx")
            accuracies[task][size] = 0.5 + rank / 10
    onnx.save(networks.joining_network(), tmp_path / "join.onnx")
    plates = Samples({"image": images}, np.zeros(8, np.int64))
    told = networks.TrainedNetworks(tmp_path, accuracies, plates, "none")
    with torch.inference_mode():
        frames, labels = pipeline.requests_of(told, 4)
        bench = load_bench(told, tmp_path, frames[:2], frames[2:])
        served = [bench.serve(planner, "equal", HOUR_NS, 0) for planner in PLANNERS]
        assert served[0].taken == ("plate=large", "kind=medium", "digit=large", "shape=large")
        for other in (each for each in served if each.taken == served[0].taken):
            np.testing.assert_array_equal(served[0].labels, other.labels)
    assert len(bench.frames) == 2
    assert labels.shape == (4, 1 + pipeline.CROPS)
    assert bench.slowest_ns > 0
    assert bench.spared == {"small": 0.0, "large": 0.0}, "there are no caches"
