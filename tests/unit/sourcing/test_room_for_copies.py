"""The copies that make room for a new one, on paper and on a real disk."""

from __future__ import annotations

import itertools
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from brisk.cli.application import application
from brisk.copies.local import LocalCopy
from brisk.copies.manifest import write_manifest
from brisk.copies.remote import MANIFEST, WHOLE
from brisk.errors import ArtefactError, UnavailableError
from brisk.sourcing.arriving import ArrivingCopy
from brisk.sourcing.room import (
    KeptCopy,
    kept_copies,
    locked,
    make_with_room,
    note_use,
    open_or_make,
    open_present,
    remove,
    to_remove,
)
from support.remote.published import Published, new_copy, publish
from support.waiting import PATIENCE_S, wait_until

CHUNK = 1 << 16


def kept(name: str, size_bytes: int, used_s: float, is_held: bool = False) -> KeptCopy:
    return KeptCopy(Path(name), size_bytes, used_s, is_held)


OLD, MIDDLE, NEW = kept("a", 100, 10.0), kept("b", 50, 20.0), kept("c", 100, 30.0)
HELD = kept("d", 100, 1.0, is_held=True)


@pytest.mark.parametrize(
    ("present", "needed_bytes", "limit_bytes", "chosen"),
    [
        ([], 10, None, []),
        ([NEW, OLD], 10**15, None, []),
        ([], 10, 10, []),
        ([], 11, 10, None),
        ([NEW, MIDDLE, OLD], 50, 300, []),
        ([NEW, MIDDLE, OLD], 51, 300, [OLD]),
        ([NEW, MIDDLE, OLD], 150, 300, [OLD]),
        ([NEW, MIDDLE, OLD], 151, 300, [OLD, MIDDLE]),
        ([NEW, MIDDLE, OLD], 300, 300, [OLD, MIDDLE, NEW]),
        ([NEW, MIDDLE, OLD], 301, 300, None),
        ([HELD, NEW], 50, 200, [NEW]),
        ([HELD, NEW], 100, 200, [NEW]),
        ([HELD, NEW], 101, 200, None),
        ([HELD], 1, 100, None),
        ([HELD], 0, 50, None),  # the limit was lowered
        ([NEW, MIDDLE], 0, 60, [MIDDLE, NEW]),
    ],
)
def test_who_was_used_least_recently_makes_room(
    present: list[KeptCopy],
    needed_bytes: int,
    limit_bytes: int | None,
    chosen: list[KeptCopy] | None,
) -> None:
    for order in itertools.permutations(present):
        assert to_remove(order, needed_bytes, limit_bytes) == chosen


def test_of_copies_used_at_one_time_the_name_decides() -> None:
    assert to_remove([kept("b", 10, 5.0), kept("a", 10, 5.0)], 5, 20) == [kept("a", 10, 5.0)]


# On a disk.


def add(base: Path, published: Published, used_s: float) -> Path:
    folder = base / published.sha256
    new_copy(folder, published).close()
    os.utime(folder / MANIFEST, (used_s, used_s))
    return folder


@pytest.fixture
def three(tmp_path: Path) -> list[Published]:
    """Models of 128, 192 and 256 KiB."""
    return [
        publish(
            tmp_path / f"m{count}",
            count * CHUNK,
            seed=count,
            chunk_bytes=CHUNK,
            weights_bytes=0,
        )
        for count in (2, 3, 4)
    ]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "remote"


def names(base: Path) -> set[str]:
    return {each.name for each in base.iterdir()}


def test_copies_are_found_with_what_they_take_and_when_they_were_used(
    base: Path, three: list[Published]
) -> None:
    folders = [add(base, each, 1000.0 + number) for number, each in enumerate(three)]
    copy = LocalCopy(folders[1])
    copies = {each.folder: each for each in kept_copies(base)}
    assert set(copies) == set(folders)
    assert [copies[folder].is_held for folder in folders] == [False, True, False]
    for number, folder in enumerate(folders):
        own = three[number].manifest.files[0].size
        assert own <= copies[folder].size_bytes <= own + 64 * 1024
        assert copies[folder].used_s == pytest.approx(1000.0 + number, abs=1) or (
            copies[folder].used_s > 1000.0  # it was read just now, where reading is noted
        )
    copy.close()
    assert not any(each.is_held for each in kept_copies(base))


def test_a_directory_that_is_not_there_has_no_copies(base: Path) -> None:
    assert kept_copies(base) == []


def half_made(base: Path) -> Path:
    """Return the folder of a copy that is being made: it has no manifest yet."""
    folder = base / ("f" * 64)
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.onnx").write_bytes(b"half")
    return folder


def test_what_is_half_made_is_removed_when_a_copy_is_made_and_files_are_left(
    base: Path, three: list[Published]
) -> None:
    folder, half = add(base, three[0], 1000.0), half_made(base)
    (base / "note").write_bytes(b"")
    assert [each.folder for each in kept_copies(base)] == [folder]
    assert names(base) == {folder.name, half.name, "note"}  # another process may be making it
    manifest = three[1].manifest
    make_with_room(base / three[1].sha256, write_manifest(manifest), manifest, None)
    assert names(base) == {folder.name, three[1].sha256, "note"}


@pytest.mark.parametrize("command", ["list", "clear"])
def test_a_command_leaves_a_copy_that_a_courier_makes_and_waits_for_it(
    tmp_path: Path, three: list[Published], command: str
) -> None:
    base = tmp_path / "cache" / "remote"
    folder = add(base, three[0], 1000.0)
    with locked(base):
        half = half_made(base)
        process = subprocess.Popen(
            [sys.executable, "-m", "brisk.cli", "cache", command],
            env={**os.environ, "BRISK_CACHE_DIR": str(base.parent)},
            stdout=subprocess.PIPE,
            text=True,
        )
        waiting = f":{base.stat().st_ino} "
        wait_until(
            lambda: any(
                "-> FLOCK" in line and waiting in line
                for line in Path("/proc/locks").read_text().splitlines()
            ),
            "the command, for the lock",
        )
        assert process.poll() is None
        assert names(base) == {folder.name, half.name}
    said, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert "1 copy" in said
    assert half.exists()
    assert folder.exists() is (command == "list")


def test_a_command_makes_no_directory_of_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    for command in ("list", "clear"):
        assert CliRunner().invoke(application, ["cache", command]).exit_code == 0
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("name", ["1/model.onnx", "1/data/weights.bin", "gathered"])
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: os.truncate(path, 10)])
def test_a_copy_that_lacks_a_file_of_its_model_is_made_anew(
    base: Path, tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    published = publish(tmp_path / "m", 3 * CHUNK, chunk_bytes=CHUNK)
    folder = add(base, published, 1000.0)
    (folder / WHOLE).touch()
    damage(folder / name)
    with pytest.raises(ArtefactError, match=f"{name} is "):
        ArrivingCopy(folder)
    assert open_present(folder) is None
    copy = open_or_make(folder, write_manifest(published.manifest), None)
    assert not copy.is_whole
    assert not copy.here()
    copy.close()


def test_a_damaged_copy_is_not_made_anew_under_those_who_use_it(
    base: Path, tmp_path: Path
) -> None:
    published = publish(tmp_path / "m", 3 * CHUNK, chunk_bytes=CHUNK)
    text = write_manifest(published.manifest)
    folder = add(base, published, 1000.0)
    user = LocalCopy(folder)
    os.truncate(folder / "1" / "data" / "weights.bin", 10)
    with pytest.raises(UnavailableError, match=r"is damaged.*once they have unloaded its model"):
        open_or_make(folder, text, None)
    assert user.model.exists()
    user.close()
    open_or_make(folder, text, None).close()


def test_use_is_noted(base: Path, three: list[Published]) -> None:
    first, second = add(base, three[0], 1000.0), add(base, three[1], 2000.0)
    note_use(first)
    times = {each.folder: each.used_s for each in kept_copies(base)}
    assert times[first] > 1e9
    assert times[first] >= times[second]
    note_use(base / "nothing")


def test_a_copy_is_removed_unless_somebody_holds_it(base: Path, three: list[Published]) -> None:
    folder = add(base, three[0], 1000.0)
    copy = LocalCopy(folder)
    assert not remove(folder)
    assert copy.model.exists()
    copy.close()
    assert remove(folder)
    assert names(base) == set()
    assert not remove(folder)


def test_a_link_in_place_of_a_manifest_is_not_followed(
    base: Path, three: list[Published], tmp_path: Path
) -> None:
    folder = add(base, three[0], 1000.0)
    elsewhere = (folder / MANIFEST).rename(tmp_path / "elsewhere")
    (folder / MANIFEST).symlink_to(elsewhere)
    assert not remove(folder)
    assert elsewhere.exists()


def test_a_form_that_lies_among_artefacts_too_is_theirs(
    base: Path, three: list[Published], tmp_path: Path
) -> None:
    folder = add(base, three[0], 1000.0)
    form = folder / "forms" / "one"
    form.write_bytes(b"\1" * 10_000_000)
    assert kept_copies(base)[0].size_bytes > 10_000_000
    os.link(form, tmp_path / "artefact")
    assert kept_copies(base)[0].size_bytes < 1_000_000


def test_a_new_copy_takes_the_room_of_the_oldest_that_nobody_holds(
    base: Path, three: list[Published]
) -> None:
    held, old = add(base, three[0], 1000.0), add(base, three[1], 2000.0)
    copy = LocalCopy(held)
    new, manifest = base / three[2].sha256, three[2].manifest
    limit_bytes = sum(each.size_bytes for each in kept_copies(base)) + CHUNK
    make_with_room(new, write_manifest(manifest), manifest, limit_bytes)
    assert names(base) == {held.name, new.name}
    assert not old.exists()
    assert LocalCopy(new).manifest == manifest
    copy.close()


def test_where_there_is_no_room_it_is_said_how_much_is_needed_and_nothing_changes(
    base: Path, three: list[Published]
) -> None:
    held = add(base, three[0], 1000.0)
    idle = add(base, three[1], 2000.0)
    copy = LocalCopy(held)
    manifest = three[2].manifest
    with pytest.raises(UnavailableError, match=r"needs 262144 bytes .*BRISK_CACHE_MIB"):
        make_with_room(base / three[2].sha256, write_manifest(manifest), manifest, 300_000)
    assert names(base) == {held.name, idle.name}
    copy.close()


def test_without_a_limit_nothing_is_removed(base: Path, three: list[Published]) -> None:
    for number, each in enumerate(three[:2]):
        add(base, each, float(number))
    manifest = three[2].manifest
    make_with_room(base / three[2].sha256, write_manifest(manifest), manifest, None)
    assert names(base) == {each.sha256 for each in three}


def test_a_file_that_is_too_large_here_is_no_reason_to_remove_others(
    base: Path, three: list[Published]
) -> None:
    idle = add(base, three[0], 1000.0)
    manifest = three[2].manifest
    most, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 * CHUNK, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            make_with_room(base / three[2].sha256, write_manifest(manifest), manifest, None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    assert names(base) == {idle.name}
