"""How far learning from traffic alone is, as a file, and what it says to people."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from brisk.exits.files.learning_record import (
    FEWEST,
    TRY_CONFIDENCE,
    Aim,
    LearningRecord,
    Stage,
    WayTried,
    collected,
    read_record,
    record_file,
    rows_wanted,
    samples_limit_bytes,
    write_record,
)
from brisk.exits.files.versions import (
    caches_file,
    latest,
    learned_file,
    make_private_folder,
    reference_file,
    samples_folder,
    trained_file,
)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    file = tmp_path / "model.onnx"
    file.write_bytes(b"a model")
    make_private_folder(file)
    return file


def test_a_record_is_read_as_it_was_written(model: Path) -> None:
    assert read_record(model) is None
    proved = "nothing is proved"
    ways = WayTried("int8-margin@0", 0.68, 1.1), WayTried("Pool(4096)@4", 0.4, 0.9)
    aim = Aim(0.98, "cosine 0.99", "small.onnx", "12 34", "56 78", needs_classes=True)
    record = LearningRecord(
        *(Stage.REFUSED, aim, 2000, 1000, 1, 0.0, proved), ways=ways, model_digest="digest"
    )
    write_record(model, record)
    assert read_record(model) == record
    assert record_file(model).stat().st_mode & 0o777 == 0o600


def test_a_record_is_of_the_models_file_as_its_copies_are_and_no_other_is(
    model: Path, tmp_path: Path
) -> None:
    aim = Aim.of(model, 0.98, "", "")
    record = LearningRecord(Stage.UNFIT, aim, reason="no scores")
    write_record(model, record)
    assert record.is_for(aim)
    copy = tmp_path / "copy.onnx"
    shutil.copy2(model, copy)
    copy.rename(model)
    assert aim.is_present(model)
    assert record.is_for(Aim.of(model, 0.98, "", ""))
    os.utime(model)
    assert not aim.is_present(model)
    assert not record.is_for(Aim.of(model, 0.98, "", ""))
    model.unlink()
    assert not aim.is_present(model)


def test_a_record_that_names_no_file_is_of_the_present_one(model: Path) -> None:
    """An earlier version of Brisk has written it."""
    write_record(model, LearningRecord(Stage.REFUSED, Aim(0.98), 2000, 1000, 1))
    written = json.loads(record_file(model).read_text())
    del written["model_stamp"]
    record_file(model).write_text(json.dumps(written))
    record = read_record(model)
    assert record is not None
    assert record.is_for(Aim.of(model, 0.98, "", ""))
    assert not record.is_for(Aim.of(model, 0.99, "", ""))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"stage": "flying"}', "\x00"])
def test_a_damaged_record_is_none(model: Path, text: str) -> None:
    record_file(model).write_text(text)
    assert read_record(model) is None


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (LearningRecord(Stage.COLLECTING, Aim(0.98), 1480), "collecting: 1,240 of 1,480 samples"),
        (LearningRecord(Stage.LEARNING, Aim(0.98), 0, 1480), "learning from 1,480 samples"),
        (
            LearningRecord(Stage.SERVED, Aim(0.98), 0, 1480, 1, 1.8),
            "learned from 1,480 samples: likely 1.80 ×",
        ),
        (
            LearningRecord(Stage.REFUSED, Aim(0.98), 2960, 1480, 1, 0.0, "no way is shorter"),
            "does not pay: no way is shorter; again with 2,960 samples, 1,240 are there",
        ),
        (
            LearningRecord(Stage.UNFIT, Aim(0.98), reason="no scores"),
            "not for this model: no scores",
        ),
    ],
)
def test_it_says_where_it_is(record: LearningRecord, words: str) -> None:
    assert record.words(1240) == words
    assert record.collects is (record.wanted > 0)


SHORTAGE = "BRISK_SAMPLES_MIB keeps 607 samples at most: set it to 313 to keep 2,966"


def test_room_for_too_few_samples_is_said_first_where_nothing_is_learned_for_want_of_it() -> None:
    most_bytes, rows = 64 << 20, 563
    size = rows * most_bytes // 607
    refused = LearningRecord(Stage.REFUSED, Aim(0.98), 2966, 1483, 1, 0.0, "nothing is shorter")
    words = refused.words(rows)
    assert refused.progress(rows, size, most_bytes) == f"{SHORTAGE}; {words}"
    assert not refused.is_full(rows, size, most_bytes), "a second try wants all"
    assert refused.progress(rows, size, 5 * most_bytes) == words
    first = LearningRecord(Stage.COLLECTING, Aim(0.97), 2300)
    assert first.progress(rows, size, most_bytes).startswith("collecting: 563 of 2,300 samples; ")
    assert first.is_full(rows, size, most_bytes), "the first try takes what finds room"
    assert first.progress(0, 0, most_bytes) == "collecting: 0 of 2,300 samples"
    assert not first.is_full(0, 0, most_bytes)


def test_the_first_try_does_not_begin_with_samples_that_can_prove_nothing() -> None:
    """Of 1,000 samples 900 fill their room, of which 225 prove: 203 are enough for 98 %."""
    first = LearningRecord(Stage.COLLECTING, Aim(0.98), rows_wanted(0.98, TRY_CONFIDENCE))
    for room, is_enough in ((1000, True), (900, False)):
        rows = round(0.95 * room)
        limit = rows, rows << 10, room << 10
        assert first.is_full(*limit) is first.is_due(*limit) is is_enough
        assert first.takes_samples(*limit) is is_enough
        assert first.progress(*limit).startswith("collecting") is is_enough


@pytest.mark.parametrize(("text", "mib"), [("", 256), ("3.5", 3.5), ("much", 256), ("inf", 256)])
def test_the_limit_of_samples_is_the_runtimes(
    text: str, mib: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRISK_SAMPLES_MIB", text)
    assert samples_limit_bytes() == mib * 2**20


def test_a_stricter_promise_wants_more_samples() -> None:
    assert rows_wanted(0.9, 0.95) == FEWEST
    assert FEWEST < rows_wanted(0.98, 0.95) < rows_wanted(0.99, 0.95)
    assert rows_wanted(0.98, 0.9) < rows_wanted(0.98, 0.95)


def test_rows_are_counted_by_the_names_of_files(model: Path) -> None:
    folder = samples_folder(model)
    assert collected(model) == (0, 0)
    (folder / "00000000000000000001-77-64.npz").write_bytes(b"x" * 10)
    (folder / "00000000000000000002-77-5.npz").write_bytes(b"x" * 20)
    (folder / "00000000000000000003-77.npz").write_bytes(b"x" * 30)
    (folder / "00000000000000000004-77-9.unfinished").write_bytes(b"x")
    assert collected(model) == (69, 60)


def test_what_the_traffic_has_taught_gives_way_to_what_was_trained(model: Path) -> None:
    assert trained_file(model) == latest(model) == caches_file(model)
    learned_file(model).write_bytes(b"learned")
    assert trained_file(model) == latest(model) == learned_file(model)
    assert reference_file(model) == learned_file(model).with_suffix(".reference")
    caches_file(model).write_bytes(b"trained")
    assert trained_file(model) == latest(model) == caches_file(model)
    assert reference_file(model) == model.with_suffix(".reference")
