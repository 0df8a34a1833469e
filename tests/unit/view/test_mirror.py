"""The directories of a view."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from brisk.copies import connection
from brisk.errors import InvalidConfigurationError, UnavailableError
from brisk.protocol.entry_files import VIEW_VARIABLE
from brisk.view.mirror import Shown, _texts, make_root, place_of, show
from brisk.view.plan import make_view
from support.server.entries import doubled, write_entry
from support.waiting import PATIENCE_S

SERVED = ("brisk",)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "repository").mkdir()
    return tmp_path / "repository"


def shown(repository: Path, *left_out: str, batch: int = 4) -> Shown:
    root, lock = make_root(repository.parent / "views")
    os.close(lock)
    return show(root, [repository], SERVED, lambda entry: entry.name in left_out, batch)


def test_an_entry_of_ours_has_its_text_completed_and_links_to_all_else(repository: Path) -> None:
    directory = write_entry(repository, "model", doubled(), 'backend: "brisk" # mine')
    (directory / "labels.txt").write_text("a")
    place = place_of(directory, shown(repository).place)
    text = (place / "config.pbtxt").read_text()
    assert text.startswith('backend: "brisk" # mine\n')
    assert "max_batch_size: 4" in text
    assert (place / "labels.txt").readlink() == directory / "labels.txt"
    assert (place / "1").readlink() == directory / "1"
    assert (directory / "config.pbtxt").read_text() == 'backend: "brisk" # mine'


@pytest.mark.usefixtures("private_cache")
def test_a_batch_size_that_the_server_sets_is_the_completed_one(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_entry(repository, "model", doubled(), 'backend: "brisk"')
    text = (place_of(directory, shown(repository, batch=6).place) / "config.pbtxt").read_text()
    assert "max_batch_size: 6" in text
    monkeypatch.setenv("BRISK_RUNTIME_DIR", str(repository.parent / "runtime"))
    named = [f"--model-repository={repository}"]
    setting = "default-max-batch-size"
    of_backend, of_all = f"onnxruntime,{setting}=7", f"{setting}=7"
    for option in (["--backend-config", of_backend], [f"--backend-config={of_all}"]):
        view = make_view([*named, *option], SERVED, lambda entry: False)
        assert view is not None
        place = place_of(directory, Path(view.environment[VIEW_VARIABLE]))
        assert "max_batch_size: 7" in (place / "config.pbtxt").read_text()
    for wrong in ("many", "9" * 5000):
        told = f"must be a whole number, not '{wrong:.60}'"
        with pytest.raises(InvalidConfigurationError, match=told):
            make_view([*named, f"--backend-config={setting}={wrong}"], SERVED, lambda entry: False)


def test_an_entry_of_another_backend_is_a_link(repository: Path) -> None:
    directory = repository / "model"
    (directory / "1").mkdir(parents=True)
    (directory / "config.pbtxt").write_text('backend: "python"')
    view = shown(repository)
    assert place_of(directory, view.place).readlink() == directory
    assert "which backend 'python' may add" in view.lost[directory]


def test_what_is_left_out_is_told_and_not_shown(repository: Path) -> None:
    names = ("one", "with space")
    one, other = (write_entry(repository, name, doubled()) for name in names)
    view = shown(repository, "with space")
    assert view.left_out == (other,)
    assert not os.path.lexists(place_of(other, view.place))
    assert place_of(one, view.place).is_dir()


def test_a_view_whose_server_lives_is_not_removed_as_left(tmp_path: Path) -> None:
    living, lock = make_root(tmp_path / "views")
    ended, other = make_root(tmp_path / "views")
    os.close(other)
    make_root(tmp_path / "views")
    assert living.is_dir()
    assert not ended.exists()
    os.close(lock)


# Models that lie elsewhere.


def write_remote(repository: Path, name: str) -> Path:
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    (folder.parent / "config.pbtxt").write_text('backend: "brisk"')
    text = json.dumps({"url": f"http://127.0.0.1:1/{name}", "sha256": "0" * 64})
    (folder / "model.remote").write_text(text)
    return folder.parent


def test_models_that_cannot_be_reached_are_asked_for_at_once_and_take_nothing_from_others(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_entry(repository, "here", doubled(), 'backend: "brisk"')
    remote = [write_remote(repository, name) for name in ("a", "b", "c")]
    asked_together = threading.Barrier(len(remote))

    def resolve(file: Path, meanwhile: Callable[[], None], *, keeps: bool) -> Path:
        asked_together.wait(PATIENCE_S)
        raise UnavailableError(f"{file}: nobody answers")

    monkeypatch.setattr(connection, "resolve", resolve)
    view = shown(repository)
    assert not view.lost
    assert "x" in (place_of(repository / "here", view.place) / "config.pbtxt").read_text()
    for directory in remote:
        text = (place_of(directory, view.place) / "config.pbtxt").read_text()
        assert f"{directory.name}/1/model.remote: nobody answers" in text


def test_of_several_versions_that_cannot_be_reached_one_is_waited_for(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = write_remote(repository, "several")
    (directory / "config.pbtxt").write_text('backend: "brisk" version_policy { all {} }')
    shutil.copytree(directory / "1", directory / "2")
    asked = []

    def resolve(file: Path, meanwhile: Callable[[], None], *, keeps: bool) -> Path:
        asked.append(file)
        raise UnavailableError("nobody answers")

    monkeypatch.setattr(connection, "resolve", resolve)
    view = shown(repository)
    assert "nobody answers" in (place_of(directory, view.place) / "config.pbtxt").read_text()
    assert len(asked) == 1


def test_whoever_gives_up_waits_for_no_url(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by Ctrl-C, which is pressed where one does not answer."""
    users = [write_entry(repository, "here", doubled(), 'backend: "brisk"')]
    users += [write_remote(repository, name) for name in ("one", "other")]
    is_over = threading.Event()

    def resolve(file: Path, meanwhile: Callable[[], None], *, keeps: bool) -> Path:
        is_over.wait(PATIENCE_S)
        raise UnavailableError("nobody answers")

    monkeypatch.setattr(connection, "resolve", resolve)
    texts = _texts(users, SERVED, 4)
    try:
        assert "max_batch_size: 4" in (next(texts).text or "")
        began_s = time.monotonic()
        texts.close()  # type: ignore[attr-defined]  # it is a generator
        assert time.monotonic() - began_s < PATIENCE_S / 2
    finally:
        is_over.set()
