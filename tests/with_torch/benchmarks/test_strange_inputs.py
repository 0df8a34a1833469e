"""Inputs that are not of the data, and the story that `brisk bench exits_learned` tells."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from brisk.exits.data.outliers import MAKERS
from brisk.exits.data.samples import Samples
from brisk.exits.exploration.composition import Tried
from brisk.exits.guarantee.calibration import Scored
from brisk.exits.heads.exit_model import OF_CLASSES, Judge
from brisk_bench.exits.data import ExitCase
from brisk_bench.exits.learned import main
from brisk_bench.exits.strange import FAMILIES, ROWS, SERVED, corrupted, strange_inputs


def case(shape: tuple[int, ...], name: str = "a net on Fashion-MNIST") -> ExitCase:
    rows = np.random.default_rng(0).normal(3, 2, (50, *shape)).astype(np.float32)
    nothing = Samples({"image": rows[:0]})
    samples = Samples({"image": rows})
    return ExitCase(name, Path("model.onnx"), nothing, samples, None, Path("."), ())


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_all_sets_have_the_models_shape_and_range(shape: tuple[int, ...]) -> None:
    made = case(shape)
    own = made.evaluation.inputs["image"]
    found = list(strange_inputs(made, None))
    assert [name for name, is_other, _ in found if is_other] == [
        "digits",
        "uniform noise",
        "shuffled pixels",
    ]
    for name, is_other, samples in found:
        rows = samples.inputs["image"]
        assert rows.shape[1:] == shape
        assert rows.dtype == np.float32
        assert 50 <= len(rows) <= ROWS
        if is_other:
            assert own.min() - 1e-3 <= rows.min() < rows.max() <= own.max() + 1e-3, name


def test_corruptions_grow_and_keep_what_is_shown() -> None:
    own = case((3, 32, 32)).evaluation.inputs["image"]
    found = dict(corrupted(own, np.random.default_rng(0)))
    apart = [np.abs(found[f"noise of {each} σ"] - own).mean() for each in ("0.1", "0.3", "1")]
    assert apart == sorted(apart)
    assert found["contrast of 0.3"].std() < found["contrast of 0.6"].std() < own.std()
    np.testing.assert_array_equal(found["moved by 2"][:, :, 2:, 2:], own[:, :, :-2, :-2])
    assert found["blurred"].std() < own.std()


def test_every_way_is_of_one_family_and_gated_ones_are_served() -> None:
    nothing = Scored(np.zeros(1, np.float32), np.ones(1, bool), np.ones(1, bool))
    for variant in ("Pool(4096)", "int8"):
        for judge in OF_CLASSES:
            if variant == "int8" and judge is not Judge.MARGIN:
                continue
            one = Tried(0, variant, 1e-4, b"", 1, (4,), nothing, nothing, judge)
            of = {name for name, belongs in FAMILIES.items() if belongs(one)}
            assert len(of - {SERVED}) == 1
            assert (SERVED in of) is (judge.is_gated or variant == "int8")


def test_shapes_are_among_the_outliers_and_have_few_levels() -> None:
    (shapes,) = (maker for maker in MAKERS if maker.__name__ == "_shapes")
    random = np.random.default_rng(0)
    for shape in ((20, 3, 12, 12), (20, 9, 5), (20, 7)):
        rows = random.normal(size=shape)
        made = shapes(rows, random)
        assert made.shape == shape
        assert rows.min() <= made.min() < made.max() <= rows.max()
        assert max(len(np.unique(row)) for row in made) <= 7


def test_without_data_it_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="has no Fashion-MNIST; give --model"):
        main(["--fashion", str(tmp_path)])
