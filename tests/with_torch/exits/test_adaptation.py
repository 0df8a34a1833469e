"""Caches that learn from traffic: better ones are published, all others are refused."""

from __future__ import annotations

import copy
import dataclasses
import math
import stat
from pathlib import Path

import numpy as np
import pytest
import torch

from brisk.exits.adaptation import adapter as adapter_module
from brisk.exits.adaptation import validation
from brisk.exits.adaptation.adapter import AdaptationOutcome, Adapter
from brisk.exits.adaptation.features import Material, gather, look_at
from brisk.exits.adaptation.reference import read_reference, write_reference
from brisk.exits.adaptation.replay_buffer import SampleWindow, Use, recent_choice
from brisk.exits.adaptation.retraining import AdaptationSettings
from brisk.exits.adaptation.validation import standing_of
from brisk.exits.base_model import BaseModel
from brisk.exits.cascade import Cascade
from brisk.exits.data.outliers import make_outliers
from brisk.exits.data.samples import Samples, divide
from brisk.exits.files.container import DamagedFileError
from brisk.exits.files.versions import reference_file
from brisk.exits.guarantee.calibration import Scored, count_cascade
from brisk.exits.learning.exporting import export_head, network_of
from brisk.exits.learning.predictor import PredictorSettings, last_layer
from brisk.exits.sources import marks
from support.exits.adapted import Adapted

MOST_RETRAINING_S = 0.5


def adapter_of(adapted: Adapted, settings: AdaptationSettings | None = None) -> Adapter:
    settings = settings or AdaptationSettings()
    return Adapter(adapted.base, adapted.cascade, adapted.reference, settings)


def fed(
    adapted: Adapted, images: np.ndarray, settings: AdaptationSettings | None = None
) -> AdaptationOutcome:
    adapter = adapter_of(adapted, settings)
    adapter.take({"image": images}, 0.0)
    return adapter.adapt(1.0)


def test_caches_come_to_answer_traffic_that_they_were_not_trained_with(adapted: Adapted) -> None:
    outcome = fed(adapted, adapted.drifted())
    assert outcome.cascade is not None, outcome.reason
    before, after = outcome.saved_s
    assert after > 1.2 * before
    assert outcome.cascade.revision == adapted.cascade.revision + 1
    assert max(outcome.retraining_s) <= MOST_RETRAINING_S
    for old, new in zip(adapted.cascade.exits, outcome.cascade.exits, strict=True):
        assert new.model != old.model


def test_retrained_caches_still_leave_out_of_distribution_inputs_to_the_model(
    adapted: Adapted,
) -> None:
    """Retraining lays less weight on outliers than first training: the gate keeps them out."""
    images = adapted.drifted()
    outcome = fed(adapted, images)
    assert outcome.cascade is not None, outcome.reason
    cascade = outcome.cascade
    board = np.indices((8, 8)).sum(0) % 2 * np.float32(16)
    strange = {
        "negative": 16 - images[:200],
        "far too bright": images[:200] * 6,
        "checkerboard": np.tile(board, (50, 1, 1, 1)).astype(np.float32),
        "noise": np.random.default_rng(9).uniform(0, 16, (200, 1, 8, 8)).astype(np.float32),
    }
    for kind, rows in strange.items():
        material = gather(adapted.base, cascade, {"image": rows})
        looked = look_at([network_of(exit_) for exit_ in cascade.exits], material)
        exits = count_cascade(looked, cascade.levels[0].thresholds).exits
        assert sum(one.answered for one in exits) <= 0.05 * len(rows), kind


def test_versions_follow_each_other_only_while_they_get_better(adapted: Adapted) -> None:
    adapter = adapter_of(adapted)
    adapter.take({"image": adapted.drifted()}, 0.0)
    best, revision = 0.0, 0
    for _ in range(5):
        outcome = adapter.adapt(1.0)
        if outcome.cascade is None:
            assert "saves" in outcome.reason
        else:
            assert outcome.saved_s[0] >= best
            assert outcome.saved_s[1] > outcome.saved_s[0]
            best, revision = outcome.saved_s[1], revision + 1
        assert adapter.cascade.revision == revision
    assert revision >= 1


def test_a_version_that_recent_traffic_speaks_against_is_replaced_by_one_that_saves_less(
    adapted: Adapted,
) -> None:
    """Its first exit answers everything, and a part of that wrongly."""
    first, *rest = adapted.cascade.exits
    network = copy.deepcopy(network_of(first))
    last = last_layer(network.predictor)
    torch.manual_seed(0)
    with torch.no_grad():
        last.weight += 0.5 * last.weight.std() * torch.randn_like(last.weight)
        network.gate.limit.fill_(math.inf)
        network.floor.zero_()
    first = dataclasses.replace(first, model=export_head(network, first.shape, first.variant))
    bold = (0.0, *(math.inf for _ in rest))
    level = dataclasses.replace(adapted.cascade.levels[0], thresholds=bold)
    cascade = dataclasses.replace(adapted.cascade, exits=(first, *rest), levels=(level,))
    adapter = Adapter(adapted.base, cascade, adapted.reference, AdaptationSettings())
    adapter.take({"image": adapted.images + np.float32(0.01)}, 0.0)
    outcome = adapter.adapt(1.0)
    assert outcome.cascade is not None, outcome.reason
    assert outcome.cascade.repairs, outcome
    assert "exit 0 agrees in" in outcome.reason
    assert 0 < outcome.saved_s[1] < outcome.saved_s[0]


def test_where_traffic_turns_back_the_next_version_is_what_was_trained_first(
    adapted: Adapted,
) -> None:
    """The served version answers nothing, and training goes wrong."""
    settings = AdaptationSettings(predictor=PredictorSettings(epochs=3, learning_rate=30.0))
    adapter = adapter_of(adapted, settings)
    nothing = (math.inf,) * len(adapted.cascade.exits)
    level = dataclasses.replace(adapted.cascade.levels[0], thresholds=nothing)
    adapter.cascade = dataclasses.replace(adapted.cascade, levels=(level,), revision=3)
    adapter.take({"image": adapted.images + np.float32(0.01)}, 0.0)
    outcome = adapter.adapt(1.0)
    assert outcome.cascade is not None, outcome.reason
    assert outcome.cascade.revision == 4
    assert not outcome.cascade.repairs
    assert outcome.cascade.levels == adapted.cascade.levels
    assert outcome.cascade.exits == adapted.cascade.exits
    assert outcome.saved_s[0] == 0 < outcome.saved_s[1]


def test_a_stricter_level_that_a_version_lacks_comes_back_once_it_is_proved(
    adapted: Adapted,
) -> None:
    """Also where nothing else is gained."""
    (level,) = adapted.cascade.levels
    loose = dataclasses.replace(level, accuracy=0.9)
    trained = dataclasses.replace(adapted.cascade, levels=(loose, level))
    adapter = Adapter(adapted.base, trained, adapted.reference, AdaptationSettings())
    adapter.take({"image": adapted.drifted()}, 0.0)
    while (learned := adapter.adapt(1.0)).cascade is not None:
        assert len(learned.cascade.levels) == 2
    lacking = dataclasses.replace(adapter.cascade, levels=adapter.cascade.levels[:1])
    adapter.cascade = lacking
    outcome = adapter.adapt(1.0)
    assert outcome.cascade is not None, outcome.reason
    assert [each.accuracy for each in outcome.cascade.levels] == [0.9, 0.95]


def test_a_single_mistake_casts_no_doubt_on_a_stricter_level_but_a_refutation_does(
    adapted: Adapted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One mistake in 150 answers is less than 99.5 %, as in nearly all traffic."""
    (level,) = adapted.cascade.levels
    none = (math.inf,) * len(adapted.cascade.exits)
    first = dataclasses.replace(level, thresholds=none)
    strict = dataclasses.replace(level, accuracy=0.995, thresholds=(0.5, *none[1:]))
    cascade = dataclasses.replace(adapted.cascade, levels=(first, strict))

    def doubt(mistakes: int) -> str:
        shape = len(none), 300
        right = np.ones(shape, bool)
        right[0, :mistakes] = False
        scores = np.repeat(np.linspace(1, 0, 300, dtype=np.float32)[None], len(none), 0)
        looked = Scored(scores, right, np.ones(shape, bool))
        monkeypatch.setattr(validation, "look_at", lambda *_: looked)
        return standing_of(cascade, Material((), (), torch.zeros(300, 10))).doubt

    assert doubt(1) == ""
    assert "exit 0 agrees in 138 of 150 answers" in doubt(12)


def test_constant_traffic_teaches_nothing(adapted: Adapted) -> None:
    outcome = fed(adapted, np.repeat(adapted.images[:3], 300, axis=0))
    assert outcome.cascade is None
    assert "there are 3 different samples in 900 offered" in outcome.reason


def test_poisoned_traffic_is_refused(adapted: Adapted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs like the ordinary ones, for which the model was made to answer otherwise."""
    adapter = adapter_of(adapted)

    def poisoned(*arguments: object) -> Material:
        gathered = gather(*arguments)  # type: ignore[arg-type]
        return dataclasses.replace(gathered, teacher=gathered.teacher.roll(1, 1))

    monkeypatch.setattr(adapter_module, "gather", poisoned)
    adapter.take({"image": adapted.images + np.float32(0.01)}, 0.0)
    outcome = adapter.adapt(1.0)
    assert outcome.cascade is None
    assert adapter.cascade is adapted.cascade
    assert outcome.saved_s[1] == 0, "no threshold is proved at which it would answer"


def test_too_few_samples_prove_nothing(adapted: Adapted) -> None:
    outcome = fed(adapted, adapted.drifted()[:120], AdaptationSettings(fewest_distinct=50))
    assert outcome.cascade is None
    assert "cannot be proved with confidence 90%" in outcome.reason


def test_nothing_is_run_where_too_few_samples_can_prove_nothing(
    adapted: Adapted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To prove 95 % takes more of the held-out share than is there."""
    adapter = adapter_of(adapted)
    for name in ("gather", "retrain"):
        monkeypatch.setattr(adapter_module, name, None)
    adapter.take({"image": adapted.drifted()[:120]}, 0.0)
    outcome = adapter.adapt(1.0)
    assert outcome.cascade is None
    assert "accuracy 95.00% cannot be proved" in outcome.reason


def test_a_worse_version_is_refused(adapted: Adapted) -> None:
    """Training that goes wrong: far too large steps."""
    settings = AdaptationSettings(predictor=PredictorSettings(epochs=3, learning_rate=30.0))
    outcome = fed(adapted, adapted.images + np.float32(0.01), settings)
    assert outcome.cascade is None
    assert outcome.reason


def test_what_is_published_is_proved_on_rows_that_trained_nothing(adapted: Adapted) -> None:
    images = adapted.drifted()
    outcome = fed(adapted, images)
    assert outcome.cascade is not None, outcome.reason
    window = SampleWindow(10_000, 1 << 30)
    window.offer({"image": images}, 0.0)
    held_out = sum(sample.use is Use.HELD_OUT for sample in window.samples())
    count = outcome.cascade.levels[0].count
    assert count.inputs == held_out
    assert 0.3 < held_out / len(window) < 0.5


def test_a_window_is_bounded_in_rows_and_bytes() -> None:
    images = np.random.default_rng(0).normal(0, 1, (50, 10)).astype(np.float32)
    window = SampleWindow(most_rows=20, most_bytes=1 << 20)
    window.offer({"image": images}, 0.0)
    assert len(window) == 20
    assert np.array_equal(window.samples()[-1].inputs["image"], images[-1])
    small = SampleWindow(most_rows=20, most_bytes=5 * 40)
    small.offer({"image": images}, 0.0)
    assert len(small) == 5
    assert small.size_bytes == 200
    small.offer({"image": np.ones((1, 51), np.float32)}, 0.0)
    assert len(small) == 5, "a row that is too large takes no other's place"


def seen_as(numbers: int) -> Material:
    """Return what exits see of a row: so many numbers."""
    return Material((torch.zeros(1, numbers - 2),), (torch.zeros(1, 1),), torch.zeros(1, 1))


def test_what_exits_see_of_a_sample_takes_the_place_of_its_inputs() -> None:
    window = SampleWindow(most_rows=20, most_bytes=1400)
    images = np.random.default_rng(0).normal(0, 1, (10, 100)).astype(np.float32)
    for image in images:  # of 400 bytes each
        window.offer({"image": image[None]}, 0.0)
        *_, newest = window.samples()
        assert window.fresh_bytes == 400
        window.see(newest, seen_as(25))
        assert not newest.inputs
    assert (len(window), window.size_bytes, window.fresh_bytes) == (10, 1000, 0)
    window.offer({"image": images[:1]}, 5.0)
    assert (len(window), window.size_bytes, window.fresh_bytes) == (10, 1000, 0), "seen before"
    window.offer({"image": -images[:1]}, 6.0)
    assert (len(window), window.size_bytes, window.fresh_bytes) == (11, 1400, 400)
    *_, before, newest = window.samples()
    window.see(newest, seen_as(350))
    assert (len(window), window.size_bytes) == (1, 1400)
    window.see(before, seen_as(25))
    window.drop(before)
    assert (len(window), window.size_bytes) == (1, 1400), "a forgotten one changes nothing"
    window.drop(newest)
    assert (len(window), window.size_bytes, window.fresh_bytes) == (0, 0, 0)


def test_photographs_are_learned_from_within_bounded_memory(
    adapted: Adapted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of 600 KB, of which a window of their bytes holds a hundred: too few to prove any."""

    def enlarged(images: np.ndarray) -> np.ndarray:
        return images.repeat(48, 2).repeat(48, 3)

    def gathered(base: BaseModel, cascade: Cascade, inputs: dict[str, np.ndarray]) -> Material:
        step = inputs["image"].shape[2] // 8
        return gather(base, cascade, {"image": inputs["image"][:, :, ::step, ::step]})

    small = adapted.reference
    monkeypatch.setattr(adapter_module, "gather", gathered)
    monkeypatch.setattr(adapter_module, "make_outliers", lambda *_: make_outliers(small.select, 0))
    fit, select, held_out = (
        Samples({"image": enlarged(part.inputs["image"][:17])})
        for part in (small.fit, small.select, small.held_out)
    )
    reference = dataclasses.replace(
        small, fit=fit, select=select, held_out=held_out, learned=marks(fit.inputs)
    )
    settings = AdaptationSettings(window_bytes=64 << 20)
    adapter = Adapter(adapted.base, adapted.cascade, reference, settings)
    images = adapted.drifted()
    for start in range(0, len(images), 10):
        adapter.take({"image": enlarged(images[start : start + 10])}, 0.0)
        assert adapter.window.fresh_bytes < settings.fresh_bytes
        assert adapter.window.size_bytes <= settings.window_bytes
    assert len(adapter.window) == len(np.unique(images, axis=0))
    outcome = adapter.adapt(1.0)
    assert outcome.cascade is not None, outcome.reason


def test_an_input_that_comes_again_counts_once_as_a_recent_one() -> None:
    images = np.eye(3, dtype=np.float32)
    window = SampleWindow(10, 1 << 20)
    window.offer({"image": images}, 0.0)
    window.offer({"image": images[:1]}, 5.0)
    assert len(window) == 3
    assert window.offered == 4
    assert [sample.arrived_s for sample in window.samples()] == [0.0, 0.0, 5.0]


def test_rows_that_are_no_numbers_teach_nothing_and_harm_nothing(adapted: Adapted) -> None:
    images = adapted.drifted()
    strange = images[:4].copy()
    strange[0], strange[1, 0, 0, 0], strange[2], strange[3] = np.nan, np.inf, 3e38, -np.inf
    adapter = adapter_of(adapted)
    adapter.take({"image": np.concatenate([images, strange])}, 0.0)
    outcome = adapter.adapt(1.0)
    assert outcome.cascade is not None, outcome.reason
    assert len(adapter.window) == outcome.samples == len(np.unique(images, axis=0))
    assert outcome.cascade.levels == fed(adapted, images).cascade.levels  # type: ignore[union-attr]


def test_rows_of_another_kind_are_left_out(adapted: Adapted) -> None:
    adapter = adapter_of(adapted)
    for images in (
        np.zeros((3, 1, 16, 8), np.float32),
        np.zeros((3, 1, 8, 8), np.float64),
    ):
        adapter.take({"image": images}, 0.0)
    adapter.take({"other": np.zeros((3, 1, 8, 8), np.float32)}, 0.0)
    assert len(adapter.window) == 0


def test_samples_do_not_change_with_the_buffer_they_came_in() -> None:
    images = np.ones((1, 4), np.float32)
    window = SampleWindow(10, 1 << 20)
    window.offer({"image": images}, 0.0)
    images[:] = 7
    assert window.samples()[0].inputs["image"].tolist() == [1, 1, 1, 1]


def test_recent_samples_are_drawn_more_often() -> None:
    arrived_s = [0.0] * 500 + [300.0] * 500
    rows = recent_choice(arrived_s, 300.0, half_life_s=100.0, count=200, seed=0)
    assert len(rows) == len(set(rows)) == 200
    recent = (rows >= 500).mean()
    assert 0.8 < recent < 0.97  # eight times the weight, less what is used up
    assert len(recent_choice(arrived_s[:10], 0.0, 100.0, 50, 0)) == 10


def test_an_adapter_opens_with_what_training_left_beside_the_model(adapted: Adapted) -> None:
    adapter = Adapter.open(adapted.model_file, AdaptationSettings())
    assert adapter is not None
    assert adapter.cascade.levels == adapted.cascade.levels
    assert Adapter.open(adapted.model_file.with_name("other.onnx"), AdaptationSettings()) is None


@pytest.mark.parametrize("kind", ["uint16", "float16", "bool"])
def test_the_reference_keeps_inputs_of_any_type_of_numbers(tmp_path: Path, kind: str) -> None:
    rows = np.random.default_rng(0).integers(0, 2, (300, 64)).astype(kind)
    samples, path = Samples({"x": rows}), tmp_path / "model.reference"
    division = divide(samples, 0)
    write_reference(path, "digest", samples, division)
    kept = read_reference(path, "digest").held_out.inputs["x"]
    assert kept.dtype == kind
    np.testing.assert_array_equal(kept, rows[division.calibrate])


def test_the_reference_is_private_and_belongs_to_one_model(adapted: Adapted) -> None:
    path = reference_file(adapted.model_file)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(DamagedFileError, match="of another model"):
        read_reference(path, "another")
