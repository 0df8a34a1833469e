"""Hidden outputs too large to be stored are reduced to what one variant reads of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from brisk.exits.base_model import BaseModel, load_graph, taps_of
from brisk.exits.data.collecting import Collected, collect
from brisk.exits.data.samples import Samples
from brisk.exits.exploration.stored import REDUCED, read_rows, reduction, with_room
from brisk.exits.exploration.trial import Trial, run_trial
from brisk.exits.files.container import read_container
from brisk.exits.heads.exit_head import ExitHead, decided, empty_head, load_weights
from brisk.exits.heads.exit_model import Shape
from brisk.exits.heads.predictors import variant
from brisk.exits.learning.predictor import PredictorSettings
from brisk.exits.learning.selection import SelectorSettings
from brisk.exits.model_graph import ExitPoint, exit_points
from brisk.exits.scores import find_scores
from support.exits.cascades import CLASSES, graph_of, images, network

WIDE = 48
"""Channels: at 12 x 12 they are 6912 numbers, of which the variant reads 3888."""

ROWS = 240


@pytest.fixture(scope="module")
def point_and_base() -> tuple[ExitPoint, BaseModel]:
    graph = graph_of(network(layers=3, channels=WIDE))
    scores = find_scores(graph)
    (point,) = exit_points(graph, scores.position)[1:2]
    return point, load_graph(graph, taps=taps_of((point,), scores, graph))


def collected_at(
    point_and_base: tuple[ExitPoint, BaseModel], folder: Path, *, is_reduced: bool
) -> Collected:
    point, base = point_and_base
    folder.mkdir()
    reduce = reduction((WIDE, 12, 12), CLASSES) if is_reduced else None
    samples = [Samples({"image": images(ROWS - 40)}), Samples({"image": images(40, seed=2)})]
    collected = collect(
        *(base, (point,), find_scores(base.graph), samples, folder),
        reductions={point.value: reduce},
    )
    rows = np.arange(ROWS)
    kinds, uses = np.arange(60) % 4, np.arange(60) % 3
    parts = {"fit": rows[:120], "select": rows[120:180], "outliers": rows[180:]}
    np.savez(folder / "rows.npz", **parts, kinds=kinds, meant=uses)
    return collected


def trained(point: ExitPoint, folder: Path, reduced_from: Shape | None) -> ExitHead:
    settings = PredictorSettings(epochs=3), SelectorSettings(epochs=3)
    run_trial(trial := Trial(folder, point.position, REDUCED, *settings, 0, reduced_from))
    head = empty_head(REDUCED, (WIDE, 12, 12), CLASSES)
    load_weights(head, read_container(trial.file).tensors)
    return head


def test_what_is_trained_of_reduced_outputs_is_what_is_trained_of_the_outputs_themselves(
    point_and_base: tuple[ExitPoint, BaseModel], tmp_path: Path
) -> None:
    point, _ = point_and_base
    whole = collected_at(point_and_base, tmp_path / "whole", is_reduced=False)
    reduced = collected_at(point_and_base, tmp_path / "reduced", is_reduced=True)
    assert whole.hidden[0].shape == (ROWS, WIDE, 12, 12)
    assert reduced.hidden[0].shape == (ROWS, WIDE * 81)
    assert reduced.summaries[0] is not None
    assert np.array_equal(whole.firsts[0], reduced.firsts[0])
    assert np.array_equal(whole.teacher, reduced.teacher)
    one = trained(point, tmp_path / "whole", None)
    other = trained(point, tmp_path / "reduced", (WIDE, 12, 12))
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
    rows, classes = np.arange(150, 200), whole.teacher.argmax(1)[150:200]
    expected, found = (
        decided(one, read_rows(each.hidden[0], each.summaries[0], rows).predicted(one, classes))
        for each in (whole, reduced)
    )
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-6)
    assert np.array_equal(found.right, expected.right)
    assert np.array_equal(found.near, expected.near)


def test_reduced_outputs_are_read_again(
    point_and_base: tuple[ExitPoint, BaseModel], tmp_path: Path
) -> None:
    point, base = point_and_base
    collected_at(point_and_base, tmp_path / "reduced", is_reduced=True)
    times = {file: file.stat().st_mtime_ns for file in (tmp_path / "reduced").iterdir()}
    samples = [Samples({"image": images(ROWS - 40)}), Samples({"image": images(40, seed=2)})]
    reduce = reduction((WIDE, 12, 12), CLASSES)
    again = collect(
        *(base, (point,), find_scores(base.graph), samples, tmp_path / "reduced"),
        reductions={point.value: reduce},
    )
    assert again.summaries[0] is not None
    assert times == {file: file.stat().st_mtime_ns for file in (tmp_path / "reduced").iterdir()}


def values(**sides: int) -> dict[str, np.ndarray]:
    return {name: np.zeros((1, 64, side, side), np.float32) for name, side in sides.items()}


KIB = 1 << 10
REDUCED_SIZE = 4 * (4096 + 64 * 5)


def test_small_outputs_are_stored_as_they_are_and_large_ones_reduced() -> None:
    points = values(early=112, middle=28, late=7)
    late, middle = (points[name].nbytes for name in ("late", "middle"))
    everything = sum(value.nbytes for value in points.values())
    assert set(with_room(points, 10, (REDUCED,), everything).values()) == {None}
    kept = with_room(points, 10, (REDUCED,), everything - 1)
    assert [name for name, reduce in kept.items() if reduce] == ["early"]
    kept = with_room(points, 10, (REDUCED,), late + middle + REDUCED_SIZE - 1)
    assert [name for name, reduce in kept.items() if reduce] == ["early", "middle"]
    assert kept["late"] is None
    assert list(with_room(points, 10, (REDUCED,), late + REDUCED_SIZE)) == ["late", "early"]
    assert with_room(points, 10, (REDUCED,), late - 1) == {}


def test_without_the_variant_that_reads_averages_nothing_is_reduced() -> None:
    points = values(early=112, late=7)
    kept = with_room(points, 10, ("Conv2(3,2)",), points["early"].nbytes)
    assert kept == {"late": None}


@pytest.mark.parametrize("shape", [(512, 256), (256, 512, 1), (16, 4000), (3, 224, 224)])
def test_averages_are_no_more_than_the_variant_says(shape: Shape) -> None:
    """Positions of a sequence, too, which have one side."""
    predictor = variant("Pool(4096)").build(shape, 10)
    assert predictor[-1].in_features <= 4096
    assert predictor[-1].in_features > 2000
