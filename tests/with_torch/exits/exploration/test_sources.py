"""Copies of one source train or prove, never both."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from brisk.errors import InvalidRequestError
from brisk.exits.adaptation.adapter import Adapter
from brisk.exits.adaptation.replay_buffer import SampleWindow, Use
from brisk.exits.adaptation.retraining import AdaptationSettings
from brisk.exits.data.outliers import FOR_FLOOR, FOR_SELECTOR, make_outliers
from brisk.exits.data.samples import Samples, divide
from brisk.exits.sources import Sources, marks
from brisk_bench.samples.digits import digits_split
from support.exits.adapted import Adapted

COPIES = 6


def pictures(count: int) -> np.ndarray:
    """Digits on an even ground, float32 [count, 1, 16, 16]."""
    return np.pad(digits_split().train_images[:count], ((0, 0), (0, 0), (4, 4), (4, 4)))


def copies(images: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """``COPIES`` of each, moved and dimmed, all mixed; and the number of each one's picture."""
    random = np.random.default_rng(seed)
    pictured = random.permutation(np.repeat(np.arange(len(images)), COPIES))
    moved = [
        np.roll(images[one], random.integers(-3, 4, 2), (1, 2))
        * np.float32(random.uniform(0.5, 1))
        for one in pictured
    ]
    return np.stack(moved), pictured


def sides(numbers: np.ndarray, of: np.ndarray) -> list[set[int]]:
    """Return, for each number in ``of``, the ``numbers`` that stand beside it."""
    return [set(numbers[of == one].tolist()) for one in np.unique(of)]


def test_moved_and_dimmed_copies_are_of_one_source_and_other_pictures_of_others() -> None:
    images, pictured = copies(pictures(150))
    numbers = Sources().of({"image": images})
    assert all(len(side) == 1 for side in sides(numbers, pictured))
    assert all(len(side) == 1 for side in sides(pictured, numbers))


def test_pictures_with_their_channels_last_are_of_the_same_sources() -> None:
    images, _ = copies(pictures(60))
    colours = np.concatenate([images, images * np.float32(0.5), images * np.float32(0.2)], 1)
    turned = np.ascontiguousarray(np.moveaxis(colours, 1, -1))
    assert np.allclose(marks({"image": turned}), marks({"image": colours}))
    assert np.array_equal(Sources().of({"image": turned}), Sources().of({"image": colours}))
    outliers = make_outliers(Samples({"image": turned}), 0)
    expected = make_outliers(Samples({"image": colours}), 0)
    made, meant = outliers.samples.inputs["image"], expected.samples.inputs["image"]
    assert made.shape[1:] == turned.shape[1:]
    assert np.array_equal(np.moveaxis(made, -1, 1), meant)


@pytest.mark.parametrize("shape", [(3, 0, 12, 12), (3, 12, 12, 0)])
@pytest.mark.filterwarnings("ignore:Mean of empty slice")
def test_pictures_without_channels_are_all_of_one_source(shape: tuple[int, ...]) -> None:
    assert Sources().of({"image": np.zeros(shape, np.float32)}).tolist() == [0, 0, 0]


def test_rows_that_are_no_images_are_of_one_source_where_they_are_equal() -> None:
    rows = {"tokens": np.array([[1, 2], [3, 4], [1, 2]]), "weight": np.array([0.5, 0.5, 0.5])}
    assert Sources().of(rows).tolist() == [0, 1, 0]
    rows["weight"][2] = 0.6
    assert Sources().of(rows).tolist() == [0, 1, 2]


def test_texts_are_of_one_source_however_far_they_are_padded() -> None:
    """But two that differ in a word, or one of which ends sooner, are two."""
    words = np.array(
        [[7, 8, 9, 0, 0, 0], [7, 8, 9, 9, 0, 0], [7, 8, 5, 0, 0, 0], [7, 8, 0, 0, 0, 0]]
    )
    texts = {"words": words, "mask": (words > 0).astype(np.float32)}
    shorter = {name: array[:, :5] for name, array in texts.items()}
    numbered = Sources()
    assert numbered.of(texts).tolist() == [0, 1, 2, 3]
    assert numbered.of(shorter).tolist() == [0, 1, 2, 3]
    table = {"a": words, "b": words[:, :3]}
    assert len(set(Sources().of({**table, "b": words[:, 1:4]}).tolist())) == 4
    floats = words.astype(np.float32)
    assert (
        numbered.of({"words": floats}).tolist() != numbered.of({"words": floats[:, :5]}).tolist()
    )


def test_sources_are_bounded_and_new_numbers_are_never_old_ones() -> None:
    sources = Sources(most=20)
    images = pictures(60)
    first = sources.of({"image": images})
    assert sources.of({"image": images[-5:]}).tolist() == first[-5:].tolist()
    assert sources.of({"image": images[:1]})[0] not in first


def test_no_part_of_a_division_shares_a_picture_with_another() -> None:
    """Divided by rows, as it was, nearly every picture lay on both sides."""
    images, pictured = copies(pictures(300))
    division = divide(Samples({"image": images}), 0)
    parts = (division.fit, division.select, division.tune, division.calibrate)
    pictures_of = [set(pictured[part].tolist()) for part in parts]
    assert sum(map(len, pictures_of)) == len(set().union(*pictures_of)) == 300
    assert len(division.fit) == COPIES * len(pictures_of[0]), "copies may fit"
    assert all(len(part) == len(one) for part, one in zip(parts[1:], pictures_of[1:], strict=True))


def test_other_data_fits_nothing_that_proves_or_tunes() -> None:
    images = pictures(700)
    more, pictured = copies(images[:100])
    samples = Samples({"image": images[:400]})
    division = divide(samples, 0, Samples({"image": more}))
    fitting = set(pictured[division.more].tolist())
    assert fitting == set(range(100)) & set(division.fit.tolist())
    assert fitting


def test_copies_are_not_counted_as_samples() -> None:
    images, _ = copies(pictures(100))
    with pytest.raises(InvalidRequestError, match="500 of them copies"):
        divide(Samples({"image": images}), 0)


def test_outliers_of_one_source_are_meant_for_one_thing() -> None:
    """If few samples are there, each is used many times in a kind; its copies lay on both
    sides."""
    images = pictures(30)
    outliers = make_outliers(Samples({"image": images}), 0)
    negative = outliers.samples.inputs["image"][outliers.kinds == 4]
    pictured = np.abs(images.max() + images.min() - negative[:, None] - images).max((2, 3, 4))
    uses = outliers.uses[outliers.kinds == 4]
    assert all(len(side) == 1 for side in sides(uses, pictured.argmin(1)))
    assert set(outliers.uses[outliers.kinds == outliers.kinds.max()].tolist()) == {FOR_SELECTOR}
    assert (outliers.uses == FOR_FLOOR).sum() > 100


def test_a_window_holds_no_copy_out_of_what_it_trains_with() -> None:
    images, pictured = copies(pictures(80))
    window = SampleWindow(10_000, 1 << 30)
    for start in range(0, len(images), 50):
        window.offer({"image": images[start : start + 50]}, float(start))
    uses = np.array([list(Use).index(sample.use) for sample in window.samples()])
    assert all(len(side) == 1 for side in sides(uses, pictured))
    assert len(set(uses.tolist())) == 3


def test_traffic_that_repeats_the_data_of_training_proves_nothing(adapted: Adapted) -> None:
    """This holds also where the reference has not kept those rows."""
    reference = adapted.reference
    assert reference.learned is not None
    few = slice(20)
    shortened = dataclasses.replace(
        reference,
        fit=reference.fit.take(few),
        select=reference.select.take(few),
        held_out=reference.held_out.take(few),
    )
    adapter = Adapter(adapted.base, adapted.cascade, shortened, AdaptationSettings())
    adapter.take(reference.fit.inputs, 0.0)
    adapter.take(reference.select.inputs, 0.0)
    assert Use.HELD_OUT not in {sample.use for sample in adapter.window.samples()}
    outcome = adapter.adapt(1.0)
    assert "cannot be proved" in outcome.reason


def test_copies_prove_once(adapted: Adapted) -> None:
    """The newest of a source stands for it; an exact binomial bound counts independent rows."""
    images = adapted.drifted()
    adapter = Adapter(adapted.base, adapted.cascade, adapted.reference, AdaptationSettings())
    for share in (1.0, 0.9, 0.8):
        adapter.take({"image": images * np.float32(share)}, 0.0)
    outcome = adapter.adapt(1.0)
    held_out = [s for s in adapter.window.samples() if s.use is Use.HELD_OUT]
    different = {sample.source for sample in held_out}
    assert len(different) < 0.5 * len(held_out)
    if outcome.cascade is not None:
        assert outcome.cascade.levels[0].count.inputs == len(different)


def test_marks_of_what_is_no_number_harm_nothing() -> None:
    images = pictures(3).copy()
    images[0], images[1, 0, 0, 0], images[2] = np.nan, np.inf, 3e38
    assert np.isfinite(marks({"image": images})).all()
