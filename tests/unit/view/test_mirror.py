"""The directories of a view, and the kernel's word about readers and changes."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from brisk.view.kernel_events import DirectoryWatch
from brisk.view.mirror import Mirror
from support.server.entries import doubled, write_entry
from support.waiting import wait_until

SERVED = ("brisk",)


class KeptView:
    """A view of one repository as its keeper has it."""

    def __init__(self, folder: Path) -> None:
        self.repository = folder / "repository"
        self.repository.mkdir()
        (folder / "view").mkdir()
        self.mirror = Mirror(folder / "view", [self.repository], SERVED, DirectoryWatch())
        self.mirror.refresh()

    def place(self, name: str) -> Path:
        return self.mirror.place_of(self.repository / name)

    def read(self, name: str) -> str:
        """What a reader gets who opens the configuration, and waits until the keeper agrees."""
        found: list[str] = []
        file = self.place(name) / "config.pbtxt"
        reader = threading.Thread(target=lambda: found.append(file.read_text()))
        reader.start()

        def is_read() -> bool:
            self.mirror.serve_readers()
            return bool(found)

        wait_until(is_read, "the reader is served")
        reader.join()
        return found[0]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[KeptView]:
    before = signal.signal(signal.SIGIO, lambda *_: None)  # else the first lease's would end us
    yield KeptView(tmp_path)
    signal.signal(signal.SIGIO, before)


def test_a_reader_sees_the_change_before_it(kept: KeptView) -> None:
    directory = write_entry(kept.repository, "model", doubled())
    kept.mirror.take_changes()
    for size in range(5, 8):
        (directory / "config.pbtxt").write_text(f'backend: "brisk" max_batch_size: {size}')
        assert f"max_batch_size: {size}" in kept.read("model")
        assert 'name: "x"' in kept.read("model")


def test_a_reader_of_an_entry_that_is_being_written_waits_for_it(kept: KeptView) -> None:
    (kept.repository / "model").mkdir()
    kept.mirror.take_changes()
    assert kept.place("model").is_dir()
    (kept.repository / "model").rmdir()
    write_entry(kept.repository, "model", doubled())
    assert "max_batch_size: 4" in kept.read("model")


def test_an_entry_of_another_backend_is_read_as_it_is(kept: KeptView) -> None:
    directory = kept.repository / "model"
    directory.mkdir()
    kept.mirror.take_changes()
    (directory / "config.pbtxt").write_text('backend: "python"')
    assert kept.read("model") == 'backend: "python"'
    assert kept.place("model").readlink() == directory


def test_new_versions_and_files_are_shown_and_removed_ones_go(kept: KeptView) -> None:
    directory = write_entry(kept.repository, "model", doubled())
    kept.mirror.take_changes()
    (directory / "labels.txt").write_text("a")
    shutil.copytree(directory / "1", directory / "3")
    kept.mirror.take_changes()
    place = kept.place("model")
    assert (place / "3" / "model.onnx").is_file()
    assert (place / "labels.txt").read_text() == "a"
    shutil.rmtree(directory / "1")
    kept.mirror.take_changes()
    assert not (place / "1").exists()
    shutil.rmtree(directory)
    kept.mirror.take_changes()
    assert not place.is_symlink()


def test_nothing_is_read_again_that_did_not_change(tmp_path: Path) -> None:
    write_entry(tmp_path / "repository", "model", doubled())
    (tmp_path / "view").mkdir()
    mirror = Mirror(tmp_path / "view", [tmp_path / "repository"], SERVED)
    mirror.refresh()
    place = mirror.place_of(tmp_path / "repository" / "model")
    before = place.readlink(), (place / "config.pbtxt").stat().st_mtime_ns
    mirror.refresh()
    assert (place.readlink(), (place / "config.pbtxt").stat().st_mtime_ns) == before
