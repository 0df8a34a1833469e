"""What is kept of requests: some, bounded, readable by their owner alone."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import pytest

from brisk.exits.files import sample_files
from brisk.exits.files.sample_files import Arrays, read_samples_file
from brisk.exits.files.versions import make_private_folder, samples_folder
from brisk.runtime.early_exit import sampling
from brisk.runtime.early_exit.sampling import (
    BYTES_PER_S,
    COLLECTED_EVERY_S,
    MOST_WAITING,
    ROWS_PER_FILE,
    Sampler,
)
from brisk.runtime.sessions.session import CachedRun
from support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("private_cache")


@dataclass
class Sampled:
    """As much of a session as is asked of it."""

    path: Path


def runs_of(model: Path, rows: np.ndarray, *, has_caches: bool = True) -> list[CachedRun]:
    """One run of a network with learned caches, or of one that is to have some."""
    frame = object() if has_caches else None
    session = Sampled(model)
    return [CachedRun(session, frame, {"x": rows}, ("model", "1"))]  # type: ignore[arg-type]


def kept(model: Path) -> np.ndarray:
    files = sorted(samples_folder(model).glob("*.npz"))
    return np.concatenate([read_samples_file(file)[0]["x"] for file in files])


def test_samples_are_written_in_order_and_for_their_owner_alone(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    sampler = Sampler(1.0, 1 << 20)
    before = os.umask(0)
    try:
        for number in range(32):
            sampler.sample(runs_of(model, np.full((4, 3), number, np.float32)))
        wait_until(lambda: len(list(samples_folder(model).glob("*.npz"))) == 2, "two files")
    finally:
        os.umask(before)
    assert kept(model)[::4, 0].tolist() == list(range(32))
    for file in samples_folder(model).iterdir():
        assert file.stat().st_mode & 0o777 == 0o600


def test_a_share_of_the_runs_is_kept(tmp_path: Path) -> None:
    """At random, by the seed; fewer than may wait for the writer, so that none is dropped."""
    sampler, model = Sampler(0.2, 1 << 20, seed=0), tmp_path / "model.onnx"
    random = Random(0)
    expected = sum(random.random() < 0.2 for _ in range(200))
    assert 20 <= expected < MOST_WAITING
    for _ in range(200):
        sampler.sample(runs_of(model, np.zeros((ROWS_PER_FILE, 3), np.float32)))
    folder = samples_folder(model)
    wait_until(lambda: len(list(folder.glob("*.npz"))) == expected, "a file for each")


def test_of_a_model_that_is_to_have_caches_a_run_is_kept_now_and_then(tmp_path: Path) -> None:
    """Whatever the share is: there are to be enough within minutes, and no more than that."""
    sampler, model, other = Sampler(0.01, 1 << 20), tmp_path / "a.onnx", tmp_path / "b.onnx"
    rows = np.zeros((ROWS_PER_FILE, 3), np.float32)
    begun_s = time.monotonic()
    for _ in range(200):
        sampler.sample(runs_of(model, rows, has_caches=False))
    sampler.sample(runs_of(other, rows, has_caches=False))
    most = 1 + (time.monotonic() - begun_s) / COLLECTED_EVERY_S
    wait_until(lambda: any(samples_folder(other).glob("*.npz")), "the other model's own")
    assert 1 <= len(list(samples_folder(model).glob("*.npz"))) <= most
    (file, *_) = samples_folder(model).glob(f"*-{ROWS_PER_FILE}.npz")
    time.sleep(COLLECTED_EVERY_S)
    sampler.sample(runs_of(model, rows, has_caches=False))
    wait_until(lambda: len(list(samples_folder(model).glob("*.npz"))) > 1, "another one")
    assert file.exists()


@pytest.mark.parametrize("has_caches", [True, False])
def test_large_inputs_are_kept_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_caches: bool
) -> None:
    """Compressing them takes time."""
    clock = [100.0]
    monkeypatch.setattr(sampling.time, "monotonic", lambda: clock[0])
    sampler, model = Sampler(1.0, 1 << 30), tmp_path / "model.onnx"
    taken: list[float] = []
    monkeypatch.setattr(sampler._taken, "put_nowait", lambda _: taken.append(clock[0]))
    large = np.zeros((1, BYTES_PER_S // 4), np.float32)
    for tick in range(100):
        clock[0] = 100.0 + tick / 10
        sampler.sample(runs_of(model, large, has_caches=has_caches))
    assert len(taken) == 11, "a burst, and one a second"
    sampler.sample(runs_of(tmp_path / "other.onnx", large, has_caches=has_caches))
    assert len(taken) == 12, "each model for itself"


def test_large_inputs_are_written_before_there_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits takes memory."""
    monkeypatch.setattr(sampling, "BYTES_PER_FILE", 1 << 20)
    sampler, model = Sampler(1.0, 1 << 30), tmp_path / "model.onnx"
    for _ in range(4):
        sampler.sample(runs_of(model, np.zeros((1, 1 << 17), np.float32)))
    wait_until(lambda: len(list(samples_folder(model).glob("*-2.npz"))) == 2, "two files of two")


def test_nothing_is_kept_of_models_without_caches_or_where_it_is_off(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    Sampler(1.0, 1 << 20).sample([])
    sampler = Sampler(0.0, 1 << 20)
    threads = threading.active_count()
    sampler.sample(runs_of(model, np.zeros((1, 3), np.float32)))
    assert threading.active_count() == threads, "nobody writes"
    assert not samples_folder(model).exists()


def test_the_oldest_files_go_first_where_room_is_short(tmp_path: Path) -> None:
    model, sampler = tmp_path / "model.onnx", Sampler(1.0, 40_000)
    random = np.random.default_rng(0)
    for number in range(10):
        rows = random.random((64, 50), np.float32)
        rows[:, 0] = number
        sampler.sample(runs_of(model, rows))
    wait_until(
        lambda: samples_folder(model).exists() and 9.0 in kept_now(model)[:, 0], "the last one"
    )
    wait_until(lambda: len(list(samples_folder(model).glob("*.npz"))) == 3, "three files")
    assert sorted(set(kept(model)[:, 0])) == [7.0, 8.0, 9.0]


def test_there_are_not_ever_more_files_of_a_row_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "MOST_FILES", 3)
    model, sampler = tmp_path / "model.onnx", Sampler(1.0, 1 << 20)
    for number in range(6):
        sampler.sample(runs_of(model, np.full((ROWS_PER_FILE, 3), number, np.float32)))
    wait_until(
        lambda: samples_folder(model).exists() and 5.0 in kept_now(model)[:, 0], "the last one"
    )
    wait_until(lambda: len(list(samples_folder(model).glob("*.npz"))) == 3, "three files")
    assert sorted(set(kept(model)[:, 0])) == [3.0, 4.0, 5.0]


def test_samples_deleted_while_a_file_is_written_are_no_reason_to_keep_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler, model = Sampler(1.0, 1 << 20), tmp_path / "model.onnx"
    began: list[Path] = []

    def deleting(model: Path) -> None:
        make_private_folder(model)
        if not began:
            shutil.rmtree(samples_folder(model))
        began.append(model)

    monkeypatch.setattr(sample_files, "make_private_folder", deleting)
    sampler.sample(runs_of(model, np.zeros((ROWS_PER_FILE, 3), np.float32)))
    wait_until(lambda: len(began) == 1, "a file whose folder is gone")
    sampler.sample(runs_of(model, np.ones((ROWS_PER_FILE, 3), np.float32)))
    wait_until(lambda: any(samples_folder(model).glob("*.npz")), "the next samples")
    assert kept(model).tolist() == np.ones((ROWS_PER_FILE, 3)).tolist()


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "[Errno 28] No space left on device"),
        (MemoryError(), "memory is short"),
    ],
    ids=["disk", "memory"],
)
def test_a_file_that_cannot_be_written_pauses_and_does_not_end_the_samples(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
    words: str,
) -> None:
    sampler, model = Sampler(1.0, 1 << 20), tmp_path / "model.onnx"
    other = tmp_path / "other.onnx"
    is_full = [True]
    written = sampling.write_samples

    def writing(model: Path, parts: list[Arrays]) -> Path:
        if is_full[0]:
            raise error
        return written(model, parts)

    monkeypatch.setattr(sampling, "write_samples", writing)
    rows = np.zeros((ROWS_PER_FILE, 3), np.float32)
    sampler.sample(runs_of(model, rows))
    said = f"no samples of {model} are kept for 60 s: {words}"
    wait_until(lambda: said in caplog.text, "the warning")
    is_full[0] = False
    sampler.sample(runs_of(model, rows))
    sampler.sample(runs_of(other, rows))
    wait_until(lambda: any(samples_folder(other).glob("*.npz")), "another model's")
    assert not samples_folder(model).exists()
    clock_s = time.monotonic
    monkeypatch.setattr(sampling.time, "monotonic", lambda: clock_s() + sampling.PAUSE_S)
    sampler.sample(runs_of(model, rows))
    wait_until(lambda: any(samples_folder(model).glob("*.npz")), "its own behind the pause")


def test_inputs_that_no_memory_is_left_for_are_not_kept_and_fail_no_request(
    tmp_path: Path,
) -> None:
    sampler, model = Sampler(1.0, 1 << 20), tmp_path / "model.onnx"
    large = np.broadcast_to(np.zeros((1, 3), np.float32), (1 << 50, 3))  # 12 PiB, if copied
    sampler.sample(runs_of(model, large))
    assert not samples_folder(model).exists()


def kept_now(model: Path) -> np.ndarray:
    """As ``kept``, while files come and go."""
    while True:
        try:
            return kept(model)
        except (FileNotFoundError, ValueError):
            continue
