"""Inputs of requests that are kept to learn from: when they go, and what stays."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from brisk.artefacts.store import FOR_ALL_MACHINES, locked
from brisk.cli.application import application
from brisk.exits.files.learning_record import collected, lock_file
from brisk.exits.files.sample_files import write_samples
from brisk.exits.files.versions import (
    OF_MODEL,
    caches_file,
    learned_file,
    note_use,
    private_folder,
    reference_file,
    training_folders,
)
from brisk.runtime.early_exit import cache_watch
from brisk.runtime.early_exit.adaptation import Adaptation
from brisk.runtime.early_exit.cache_watch import CacheWatch
from brisk.runtime.early_exit.first_learning import FirstLearning
from brisk.runtime.early_exit.kept_inputs import (
    ABANDONED_S,
    clear_inputs,
    delete_inputs,
    remove_abandoned,
)
from support.waiting import wait_until

DAY_S = 86400.0


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with samples, what was learned from them, and what a killed process has left."""
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    file = tmp_path / "net" / "1" / "model.onnx"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"onnx")
    kept(file)
    return file


def kept(file: Path) -> None:
    write_samples(file, [{"x": np.zeros((5, 4), np.float32)}])
    learned_file(file).write_bytes(b"learned")
    reference_file(file).write_bytes(b"reference")
    left = private_folder(file) / "training" / "at-values"
    left.mkdir(parents=True)
    (left / "hidden-3.npy").write_bytes(bytes(1000))


def is_kept(file: Path) -> tuple[bool, bool]:
    """Whether its samples are there, and what was made of them."""
    return collected(file)[0] > 0, (private_folder(file) / "training").exists()


def aged(file: Path, seconds: float) -> None:
    at_s = time.time() - seconds
    os.utime(file, (at_s, at_s))


def test_inputs_are_deleted_and_what_was_learned_stays(model: Path) -> None:
    delete_inputs(model)
    assert is_kept(model) == (False, False)
    assert learned_file(model).exists()
    assert reference_file(model).exists()


def test_inputs_stay_while_a_process_learns_from_them(model: Path) -> None:
    with locked(lock_file(model), FOR_ALL_MACHINES):
        delete_inputs(model)
        assert clear_inputs(time.time() + 1) == 0
    assert is_kept(model) == (True, True)


def test_of_a_model_that_has_kept_nothing_nothing_is_made(model: Path) -> None:
    other = model.with_name("other.onnx")
    delete_inputs(other)
    note_use(other)
    assert not private_folder(other).exists()


def test_the_command_deletes_inputs_and_keeps_what_was_learned(model: Path) -> None:
    caches_file(model).write_bytes(b"by hand")
    interrupted, running = (training_folders() / name for name in ("interrupted", "running"))
    for folder in (interrupted, running):
        folder.mkdir(parents=True)
        (folder / "hidden-3.npy").write_bytes(bytes(1 << 20))
    with locked(running):
        recent = CliRunner().invoke(application, ["cache", "clear", "--unused-days", "1"])
        assert "removed inputs" not in recent.output
        assert is_kept(model) == (True, True)
        cleared = CliRunner().invoke(application, ["cache", "clear"])
    assert "removed inputs kept to learn from: 1.0 MiB" in cleared.output
    assert is_kept(model) == (False, False)
    assert not interrupted.exists()
    assert running.exists()
    for left in (caches_file(model), learned_file(model), private_folder(model) / OF_MODEL):
        assert left.exists()


@pytest.mark.parametrize(
    "what", ["gone", "gone lately", "there", "in use", "not noted", "noted as zeros"]
)
def test_folders_of_models_that_are_gone_are_removed_after_a_week(model: Path, what: str) -> None:
    """Within it the file may be another container's, or on a disk that is not mounted."""
    folder = private_folder(model)
    assert (folder / OF_MODEL).read_text() == str(model)
    aged(folder / OF_MODEL, ABANDONED_S / 2 if what == "gone lately" else ABANDONED_S + DAY_S)
    if what != "there":
        model.unlink()
    if what == "noted as zeros":
        (folder / OF_MODEL).write_bytes(bytes(20))
        aged(folder / OF_MODEL, ABANDONED_S + DAY_S)
    if what == "not noted":
        (folder / OF_MODEL).unlink()
    remove_abandoned([model] if what == "in use" else [])
    assert folder.exists() is (what != "gone")
    if what == "in use":
        assert time.time() - (folder / OF_MODEL).stat().st_mtime < DAY_S


def test_inputs_stay_as_long_as_another_runtime_writes_some(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a GPU, or of another container with the same cache."""
    monkeypatch.setattr(cache_watch, "LEFT_S", 2.0)
    first = FirstLearning(1 << 20, is_on=True, learns=True)
    asks_for_nothing: Any = SimpleNamespace(path=model, table=SimpleNamespace(is_closed=False))
    CacheWatch(Adaptation(0.0), 0.02, first).collect(asks_for_nothing, None)
    rows = collected(model)[0]
    for _ in range(15):
        time.sleep(0.2)
        write_samples(model, [{"x": np.zeros((5, 4), np.float32)}])
        rows += 5
        assert collected(model)[0] == rows
    wait_until(lambda: collected(model) == (0, 0), "an end of the inputs")
    asks_for_nothing.table.is_closed = True
