"""Which version of a model's caches is served, and that nobody else can read what was learned."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from brisk import paths
from brisk.exits.files.container import digest_at_end, write_container
from brisk.exits.files.versions import (
    MADE_OF,
    adapted_file,
    caches_file,
    candidate_file,
    is_candidate_outdated,
    latest,
    make_private_folder,
    previous_file,
    promote,
    samples_folder,
    take_back,
)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    file = tmp_path / "model.onnx"
    file.write_bytes(b"model")
    caches_file(file).write_bytes(b"trained")
    make_private_folder(file)
    return file


def test_folders_of_what_is_learned_are_the_owner_s_alone(model: Path) -> None:
    for folder in (samples_folder(model), samples_folder(model).parent):
        assert folder.stat().st_mode & 0o777 == 0o700
    make_private_folder(model)


def test_models_of_the_same_name_share_nothing(model: Path, tmp_path: Path) -> None:
    assert samples_folder(tmp_path / "other" / "model.onnx") != samples_folder(model)


def test_the_adapted_version_is_served_until_caches_are_trained_anew(model: Path) -> None:
    assert latest(model) == caches_file(model)
    adapted_file(model).write_bytes(b"adapted")
    trained_ns = caches_file(model).stat().st_mtime_ns
    os.utime(adapted_file(model), ns=(trained_ns + 10**9,) * 2)
    assert latest(model) == adapted_file(model)
    os.utime(caches_file(model), ns=(trained_ns + 2 * 10**9,) * 2)
    assert latest(model) == caches_file(model)


def test_what_was_made_of_other_caches_is_not_served_whatever_the_times_of_the_files(
    model: Path,
) -> None:
    """A copy of a folder keeps them: what was trained first may be deployed last."""
    trained, adapted, candidate = caches_file(model), adapted_file(model), candidate_file(model)

    def made_at(file: Path, day: int, header: Mapping[str, object]) -> None:
        write_container(file, header, {})
        os.utime(file, ns=(day * 10**18,) * 2)

    made_at(trained, 3, {"revision": 0})
    made_of = {MADE_OF: digest_at_end(trained)}
    made_at(adapted, 1, {"revision": 1} | made_of)
    made_at(candidate, 1, {"revision": 2} | made_of)
    assert latest(model) == adapted
    assert not is_candidate_outdated(model)
    made_at(trained, 1, {"revision": 0, "another": True})
    promote(model)
    assert latest(model) == trained
    made_at(candidate, 2, {"revision": 3} | made_of)
    assert is_candidate_outdated(model)


def test_what_cannot_be_read_now_is_no_reason_to_delete_what_was_made_of_it(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Too many open files, for example."""
    trained, adapted, candidate = caches_file(model), adapted_file(model), candidate_file(model)
    write_container(trained, {"revision": 0}, {})
    for file, revision in ((adapted, 1), (candidate, 2)):
        write_container(file, {"revision": revision, MADE_OF: digest_at_end(trained)}, {})
    opened_file = os.open

    def opening(path: str, flags: int, *more: object, **further: object) -> int:
        if path == trained.name:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return opened_file(path, flags, *more, **further)  # type: ignore[arg-type]

    monkeypatch.setattr(paths.os, "open", opening)
    assert not is_candidate_outdated(model)
    assert latest(model) == adapted


def test_versions_are_taken_back_one_by_one(model: Path) -> None:
    for name in (b"first", b"second", b"third"):
        candidate_file(model).write_bytes(name)
        promote(model)
        assert latest(model).read_bytes() == name
        assert not candidate_file(model).exists()
    assert previous_file(model).read_bytes() == b"second"
    take_back(model)
    assert latest(model).read_bytes() == b"second"
    take_back(model)
    assert latest(model) == caches_file(model), "the one before is gone"
    take_back(model)


def test_nothing_is_promoted_where_there_is_no_candidate(model: Path) -> None:
    adapted_file(model).write_bytes(b"adapted")
    with pytest.raises(FileNotFoundError):
        promote(model)
    assert adapted_file(model).exists()
