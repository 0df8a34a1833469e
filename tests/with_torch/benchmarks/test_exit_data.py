"""What `brisk bench exits` measures was never learned from or tuned on."""

from __future__ import annotations

import itertools
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brisk.exits.adaptation.adapter import AdaptationOutcome, Adapter
from brisk.exits.adaptation.retraining import AdaptationSettings
from brisk.exits.data.samples import Samples
from brisk.exits.sources import Sources
from brisk.runtime.settings import ADAPTATION_S
from brisk_bench.exits import data as exit_data
from brisk_bench.exits import streams as exit_streams
from brisk_bench.exits.data import caches_folder, digits_case, fashion_case, unlike
from brisk_bench.exits.runs import ExitBench
from brisk_bench.exits.streams import ALPHAS, divided, fresh_seeds, measure_streams, zipf_intervals
from brisk_bench.harness.report import Report
from brisk_bench.samples.digits import digits_split
from support.exits.adapted import Adapted

SEEDS = (1, 2, 3)


def sources_in(parts: list[Samples]) -> list[set[int]]:
    known = Sources()
    return [set(known.of(part.inputs).tolist()) for part in parts]


def are_apart(parts: list[Samples]) -> bool:
    found = sources_in(parts)
    return not any(one & other for one, other in itertools.combinations(found, 2))


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Samples]:
    """What networks were to be trained on."""
    asked: list[Samples] = []

    def noted(name: str, recipe: object, samples: Samples) -> Path:
        asked.append(samples)
        return tmp_path / "model.onnx"

    monkeypatch.setattr(exit_data, "kept_network", noted)
    return asked


def test_digits_of_the_network_its_caches_and_the_evaluation_share_no_picture(
    untrained: list[Samples],
) -> None:
    """The network had been trained on most of what was measured."""
    case = digits_case(quick=True)
    assert are_apart([*untrained, case.training, case.evaluation])
    assert case.more_to_fit is not None
    assert are_apart([case.more_to_fit, case.training, case.evaluation])
    assert len(case.evaluation) > 300
    assert case.streamed is None


def test_parts_of_fashion_mnist_share_no_picture_even_where_it_repeats_them(
    untrained: list[Samples], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn here from 700 digits, with copies of the first ones among all the others."""
    images = np.pad(digits_split().train_images[:1200], ((0, 0), (0, 0), (4, 4), (4, 4))) / 16
    labels = digits_split().train_labels[:1200]
    moved = np.roll(images[:100] * np.float32(0.7), 2, 3)

    def read(folder: Path, part: str) -> Samples:
        if part == "train":
            both = np.concatenate([images[:400], moved[50:], images[400:600]])
            return Samples({"image": both}, np.concatenate([labels[:450], labels[:200]]))
        return Samples(
            {"image": np.concatenate([moved[:50], images[600:]])}, labels[: 50 + 600].copy()
        )

    monkeypatch.setattr(exit_data, "read_idx", read)
    monkeypatch.setattr(exit_data, "FITTED", 250)
    monkeypatch.setattr(exit_data, "STREAMED", 250)
    monkeypatch.setattr(exit_data, "POOL", 150)
    monkeypatch.setattr(exit_data, "EVALUATED", 100)
    case = fashion_case(Path(), quick=False)
    assert case is not None
    assert case.streamed is not None
    assert case.pool is not None
    parts = [*untrained, case.training, case.evaluation, case.streamed, case.pool]
    assert are_apart(parts)
    assert [len(part) for part in parts[:2]] == [250, 550]
    assert len(case.evaluation) == 50, "half of it are copies of what trained the network"


def test_only_the_first_of_all_copies_is_left() -> None:
    images = np.random.default_rng(0).uniform(0, 1, (30, 1, 12, 12)).astype(np.float32)
    first, second = Samples({"x": images[:10]}), Samples({"x": images[[3, 20, 21, 20]] * 2})
    kept = unlike([first, second])
    assert kept[0] is not second
    assert len(kept[0]) == 10
    np.testing.assert_array_equal(kept[1].inputs["x"], images[[20, 21]] * 2)


def test_caches_of_other_data_lie_in_another_folder(tmp_path: Path) -> None:
    """What lies there is used again; trained with other rows it may know what is measured."""
    images = np.zeros((4, 3), np.float32)
    once, again = (caches_folder(tmp_path / "m", Samples({"x": images + n})) for n in (0, 1))
    assert once != again
    assert once == caches_folder(tmp_path / "m", Samples({"x": images}))


def stream(count: int) -> Samples:
    split = digits_split()
    images = np.pad(split.train_images[:count], ((0, 0), (0, 0), (4, 4), (4, 4)))
    return Samples({"image": images}, split.train_labels[:count])


def test_a_stream_measures_other_images_than_it_teaches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 400 images both drew, 98 % of those that were measured had been learned from."""
    monkeypatch.setattr(exit_streams, "LEARNED_FROM", 2000)
    monkeypatch.setattr(exit_streams, "MEASURED", 200)
    images = stream(400)
    learned, measured = divided(images, 1)
    assert are_apart([learned, measured])
    assert 0.2 < len(measured) / 400 < 0.3
    assert set(measured.labels) == set(range(10))  # type: ignore[arg-type]
    intervals = list(zipf_intervals(images, 1.5, 1))
    assert len(intervals) == exit_streams.PERIODS
    arriving, asked = (
        Samples(
            {"image": np.concatenate([getattr(one, name).inputs["image"] for one in intervals])}
        )
        for name in ("arriving", "measured")
    )
    assert are_apart([arriving, asked])


def first_asked(images: Samples, seed: int) -> np.ndarray:
    return next(zipf_intervals(images, 1.5, seed)).measured.inputs["image"]


def test_a_stream_is_its_seed_s_and_every_run_has_seeds_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exit_streams, "LEARNED_FROM", 200)
    monkeypatch.setattr(exit_streams, "MEASURED", 20)
    images = stream(400)
    np.testing.assert_array_equal(first_asked(images, 1), first_asked(images, 1))
    assert not np.array_equal(first_asked(images, 1), first_asked(images, 2))
    assert len({*fresh_seeds(5), *fresh_seeds(5)}) == 10


def test_a_stream_is_followed_as_the_product_learns(
    adapted: Adapted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its settings, its interval, its reference; every interval is measured and said.

    Of speeds the seeds' median is judged, with its range in a row.
    """
    monkeypatch.setattr(exit_streams, "LEARNED_FROM", 600)
    monkeypatch.setattr(exit_streams, "PERIODS", 2)
    monkeypatch.setattr(exit_streams, "MEASURED", 40)
    asked: list[AdaptationSettings] = []
    times_s: list[float] = []

    class Noting(Adapter):
        def __init__(self, *arguments: Any) -> None:
            asked.append(arguments[-1])
            super().__init__(*arguments)

        def adapt(self, now_s: float) -> AdaptationOutcome:
            times_s.append(now_s)
            return super().adapt(now_s)

    monkeypatch.setattr(exit_streams, "Adapter", Noting)
    case = exit_data.ExitCase(
        *("digits", adapted.model_file, Samples({"image": adapted.images}), Samples({})),
        *(None, adapted.model_file.parent, ()),
        streamed=Samples({"image": adapted.drifted(tuple(range(10)))}, adapted.labels),
    )
    bench = ExitBench(adapted.model_file)
    report = Report("exits", {}, {}, [], [])
    try:
        measure_streams(report, case, adapted.cascade, bench, None, SEEDS)
    finally:
        bench.close()
    periods, drawn = exit_streams.PERIODS, len(ALPHAS) * len(SEEDS)
    assert asked == [AdaptationSettings()] * drawn
    assert times_s == [ADAPTATION_S * (number + 1) for number in range(periods)] * drawn
    measured = [row for row in report.rows if "inputs" in row]
    assert len(measured) == drawn * 3
    assert all(row["inputs"] == 40 * periods for row in measured)
    said = [note for note in report.notes if "published" in note or "refused: " in note]
    assert len(said) == drawn * periods
    assert len(report.checks) == 4 * len(ALPHAS)
    for alpha in ALPHAS:
        found = [
            row["speed_up"]
            for row in measured
            if f"Zipf {alpha}, seed" in row["model"] and row["side"] == exit_streams.ADAPTIVE
        ]
        (check,) = (
            each
            for each in report.checks
            if each.name == f"Zipf {alpha}: mean speed-up with adaptation, median of 3 seeds"
        )
        assert check.value == statistics.median(found)
        (row,) = (
            each
            for each in report.rows
            if "least" in each and f"Zipf {alpha}," in each["model"] and "bare" in each["side"]
        )
        assert (row["least"], row["speed_up"], row["most"]) == tuple(sorted(found))
