"""Copies as readers see them: what is here by ``progress``, by ``whole``, after a boot."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from brisk.artefacts.content import ITSELF, content_of
from brisk.copies.local import (
    HEADER_BYTES,
    HERE,
    MAGIC,
    PROGRESS,
    LocalCopy,
    chunk_starts,
    copy_folder,
    copy_of,
    listed,
    path_in,
    progress_header,
)
from brisk.copies.manifest import Range
from brisk.copies.remote import MANIFEST, WHOLE, remote_directory
from brisk.errors import ArtefactError, InvalidModelError
from brisk.graph.files.mapping import map_file
from brisk.paths import KEPT, is_kept, stamp_of
from support.remote.published import Published, publish

CHUNK = 1 << 16
MODEL_CHUNKS, WEIGHT_CHUNKS = 4, 2
CHUNKS = MODEL_CHUNKS + WEIGHT_CHUNKS + 1 + 1  # the head's, and a form's
OTHER_BOOT = (MAGIC + b"00000000-0000-0000-0000-000000000000").ljust(HEADER_BYTES, b"\0")


@pytest.fixture
def published(tmp_path: Path, private_cache: None) -> Published:
    return publish(
        tmp_path / "published",
        3 * CHUNK + 1000,
        chunk_bytes=CHUNK,
        weights_bytes=2 * CHUNK,
        forms={"one": b"\2" * 3000},
    )


def write_copy(
    published: Published,
    here: bytes = bytes(CHUNKS),
    header: bytes | None = None,
    *,
    is_filled: bool = False,
) -> Path:
    """A copy's folder, as the courier makes it; what its files hold are zeros, unless it is
    filled. ``here``: of each chunk. ``header``: of the progress; None: of this boot."""
    folder = remote_directory() / published.sha256
    for number in range(len(published.manifest.files)):
        path = path_in(folder, published.manifest, number)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = published.contents[number]
        path.write_bytes(content if is_filled else bytes(len(content)))
        path.chmod(KEPT)
    (folder / PROGRESS).write_bytes((progress_header() if header is None else header) + here)
    shutil.copyfile(published.folder / MANIFEST, folder / MANIFEST)
    return folder


def note(folder: Path, *chunks: int) -> None:
    """The chunks are here now."""
    with (folder / PROGRESS).open("r+b") as file:
        for chunk in chunks:
            file.seek(HEADER_BYTES + chunk)
            file.write(bytes([HERE]))


def test_spans_merge_and_have_each_chunk_once(published: Published) -> None:
    copy = LocalCopy(write_copy(published))
    assert list(chunk_starts(copy.manifest)) == [0, 4, 6, 7, 8]
    assert copy.spans([]) == ()
    assert copy.spans([Range(0, 5, 0)]) == ()
    assert copy.spans([Range(0, 0, 1), Range(0, 1, 1), Range(0, CHUNK - 1, 1)]) == ((0, 1),)
    assert copy.spans([Range(0, CHUNK - 1, 2)]) == ((0, 2),)
    assert copy.spans([Range(0, 2 * CHUNK, 1), Range(0, 0, 1)]) == ((0, 1), (2, 3))
    assert copy.spans([Range(1, 0, 1), Range(0, 3 * CHUNK, 1)]) == ((3, 5),)  # of two files
    assert copy.spans(copy.all_of_it) == ((0, 6),)
    assert copy.spans([copy.manifest.gathered_range]) == ((6, 7),)


def test_missing_bytes_are_those_of_chunks_that_are_not_here(published: Published) -> None:
    folder = write_copy(published, bytes([1, 0, 0, 1, 1, 0, 0, 0]))
    copy = LocalCopy(folder)
    spans = copy.spans(copy.all_of_it)
    assert copy.missing_bytes(spans) == 3 * CHUNK
    assert copy.missing_bytes(copy.spans([Range(0, 3 * CHUNK, 1000)])) == 0
    assert copy.missing_bytes(()) == 0
    assert not copy.is_here(spans)
    note(folder, 1)
    assert copy.missing_bytes(spans) == 2 * CHUNK
    assert copy.is_here(copy.spans([Range(0, CHUNK, CHUNK)]))
    assert not copy.is_here(copy.spans([Range(0, CHUNK, CHUNK + 1)]))


def test_a_chunk_is_here_when_its_byte_is_one_and_nothing_else(published: Published) -> None:
    copy = LocalCopy(write_copy(published, bytes([2, 255, 1, 0]) + bytes(4)))
    assert copy.missing_bytes(copy.spans([Range(0, 0, 4 * CHUNK - 1)])) == 3 * CHUNK


def test_head_and_whole_come_with_their_chunks(published: Published) -> None:
    folder = write_copy(published)
    copy = LocalCopy(folder)
    assert (copy.has_head, copy.is_whole) == (False, False)
    note(folder, 6)
    assert (copy.has_head, copy.is_whole) == (True, False)
    note(folder, 0, 1, 2, 3, 4)
    assert not copy.is_whole
    note(folder, 5)
    assert copy.is_whole  # the form is none of the model's own files


def test_the_mark_alone_says_that_it_is_whole(published: Published) -> None:
    folder = write_copy(published)
    copy = LocalCopy(folder)
    (folder / WHOLE).touch()
    assert (copy.has_head, copy.is_whole) == (True, True)


@pytest.mark.parametrize("size", [0, HEADER_BYTES, HEADER_BYTES + CHUNKS - 1, 200])
def test_a_progress_of_another_size_is_refused(published: Published, size: int) -> None:
    folder = write_copy(published)
    os.truncate(folder / PROGRESS, size)
    with pytest.raises(ArtefactError, match=f"progress is not of {HEADER_BYTES + CHUNKS} bytes"):
        LocalCopy(folder)


@pytest.mark.parametrize("header", [OTHER_BOOT, bytes(HEADER_BYTES)])
def test_a_progress_of_another_boot_is_not_believed(published: Published, header: bytes) -> None:
    folder = write_copy(published, b"\1" * CHUNKS, header)
    with pytest.raises(ArtefactError, match="it is to be verified after a boot"):
        LocalCopy(folder)


def _other_boot(folder: Path) -> None:
    (folder / PROGRESS).write_bytes(OTHER_BOOT + bytes(CHUNKS))


def _cut_short(folder: Path) -> None:
    os.truncate(folder / PROGRESS, 3)


def _emptied(folder: Path) -> None:
    os.truncate(folder / PROGRESS, 0)


def _removed(folder: Path) -> None:
    (folder / PROGRESS).unlink()


@pytest.mark.parametrize("spoil", [_other_boot, _cut_short, _emptied, _removed])
def test_a_whole_copy_is_used_whatever_its_progress(
    published: Published, spoil: Callable[[Path], None]
) -> None:
    folder = write_copy(published)
    (folder / WHOLE).touch()
    spoil(folder)
    copy = LocalCopy(folder)
    assert (copy.has_head, copy.is_whole) == (True, True)
    assert copy.is_here(copy.spans(copy.all_of_it))
    assert copy.missing_bytes(copy.spans([Range(3, 0, 3000)])) == CHUNK  # of a form nobody knows


def test_a_manifest_of_another_digest_than_its_folder_is_refused(published: Published) -> None:
    folder = write_copy(published)
    other = folder.rename(folder.with_name("0" * 64))
    with pytest.raises(ArtefactError, match=f"SHA-256 {published.sha256}, expected {'0' * 64}"):
        LocalCopy(other)
    with pytest.raises(ArtefactError, match="expected 0000"):
        listed(other / "1" / "model.onnx")


def test_where_there_is_no_copy_nothing_is_opened(published: Published) -> None:
    folder = write_copy(published)
    (folder / MANIFEST).unlink()
    with pytest.raises(FileNotFoundError):
        LocalCopy(folder)
    with pytest.raises(FileNotFoundError):
        LocalCopy(folder.with_name("f" * 64))


@pytest.mark.parametrize("name", [MANIFEST, PROGRESS])
def test_what_others_could_have_written_is_refused(published: Published, name: str) -> None:
    folder = write_copy(published)
    (folder / name).chmod(0o666)
    with pytest.raises(PermissionError, match=name):
        LocalCopy(folder)


def is_locked(folder: Path) -> bool:
    with (folder / MANIFEST).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_a_copy_is_held_until_all_its_readers_are_gone(published: Published) -> None:
    folder = write_copy(published)
    first, second = LocalCopy(folder), LocalCopy(folder)
    first.close()
    first.close()
    assert is_locked(folder)
    del second
    assert not is_locked(folder)


def test_a_copy_that_is_being_removed_is_none(published: Published) -> None:
    folder = write_copy(published)
    with (folder / MANIFEST).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(FileNotFoundError, match="is being removed"):
            LocalCopy(folder)
    LocalCopy(folder).close()


def test_an_opening_waits_for_who_only_looks_whether_the_copy_is_in_use(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_copy(published)
    with (folder / MANIFEST).open("rb") as looking:
        fcntl.flock(looking, fcntl.LOCK_EX)
        monkeypatch.setattr(time, "sleep", lambda seconds: looking.close())
        copy = LocalCopy(folder)
    assert is_locked(folder)
    copy.close()


def test_a_copy_that_is_made_anew_while_it_is_opened_is_held_or_refused(
    published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening the manifest and locking it, the copy is removed and made again: what is
    locked then is a file without a name, and the new copy is anybody's to remove."""
    folder = write_copy(published)
    lock = fcntl.flock

    def late(descriptor: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        shutil.rmtree(folder)
        write_copy(published)
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    try:
        copy = LocalCopy(folder)
    except FileNotFoundError:
        return
    assert is_locked(folder)
    copy.close()


def test_a_refused_copy_is_not_held(published: Published) -> None:
    folder = write_copy(published, header=OTHER_BOOT)
    with pytest.raises(ArtefactError):
        LocalCopy(folder)
    assert not is_locked(folder)


def test_files_are_found_by_their_paths(published: Published, tmp_path: Path) -> None:
    folder = write_copy(published)
    copy = LocalCopy(folder)
    assert copy.model == folder / "1" / "model.onnx"
    assert copy.path(2) == folder / "gathered"
    assert copy.path(3) == folder / "forms" / "one"
    link = tmp_path / "link"
    link.symlink_to(folder / "1")
    assert copy.number_of(link / "data" / "weights.bin") == 1
    assert copy.number_of(link / "model.onnx") == 0
    assert copy.number_of(link / "other") is None


def test_a_copy_is_found_through_links(published: Published, tmp_path: Path) -> None:
    folder = write_copy(published)
    version = tmp_path / "net" / "1"
    version.parent.mkdir()
    version.symlink_to(folder / "1")
    model = version / "model.onnx"
    assert copy_folder(model) == folder
    copy = copy_of(model)
    assert copy is not None
    assert copy.folder == folder
    assert listed(model) == published.manifest.files[0]
    assert listed(version / "data" / "weights.bin") == published.manifest.files[1]
    assert listed(folder / "forms" / "one") == published.manifest.files[3]


def test_the_cache_itself_may_be_a_link(published: Published, tmp_path: Path) -> None:
    folder = write_copy(published)
    real = (tmp_path / "cache").rename(tmp_path / "elsewhere")
    (tmp_path / "cache").symlink_to(real)
    place = real / "remote" / published.sha256
    for model in (folder / "1" / "model.onnx", place / "1" / "model.onnx"):
        assert copy_folder(model) == place
    assert listed(folder / "1" / "model.onnx") == published.manifest.files[0]


def test_other_files_are_of_no_copy(published: Published, tmp_path: Path) -> None:
    folder = write_copy(published)
    elsewhere = tmp_path / "model.onnx"
    elsewhere.write_bytes(b"x")
    assert copy_folder(elsewhere) is None
    assert copy_of(elsewhere) is None
    assert listed(elsewhere) is None
    assert copy_folder(folder.parent / "file") is None
    assert listed(folder / "1" / "another") is None
    assert copy_folder(folder / "1" / "model.onnx", {"BRISK_CACHE_DIR": str(tmp_path)}) is None


def test_what_a_file_holds_is_known_before_it_is_verified(published: Published) -> None:
    folder = write_copy(published, header=OTHER_BOOT)
    assert listed(folder / "1" / "model.onnx") == published.manifest.files[0]


def test_digests_are_those_of_the_manifest_by_names_beside_the_model(published: Published) -> None:
    files = published.manifest.files
    copy = LocalCopy(write_copy(published))
    assert copy.digests() == {ITSELF: files[0].digest, "data/weights.bin": files[1].digest}


def test_the_content_of_a_copy_is_what_its_manifest_says_unread(published: Published) -> None:
    folder = write_copy(published)  # zeros
    model = folder / "1" / "model.onnx"
    digests = LocalCopy(folder).digests()
    found = content_of(model, digests)
    assert found.digests == digests
    assert found.stamps[ITSELF][1:3] == [0, 0]
    (folder / WHOLE).touch()
    model.chmod(0o600)  # now it is a file as any other: it is read
    assert content_of(model, [ITSELF]).digests != {ITSELF: digests[ITSELF]}


def test_what_only_looks_like_a_file_of_a_copy_is_refused(
    published: Published, tmp_path: Path
) -> None:
    folder = write_copy(published)
    kept = tmp_path / "model.onnx"
    kept.write_bytes(b"x")
    kept.chmod(KEPT)
    with pytest.raises(InvalidModelError, match="looks like a file of a copy, and is of none"):
        content_of(kept, [ITSELF])
    beside = folder / "1" / "another.onnx"
    kept.rename(beside)
    with pytest.raises(InvalidModelError, match="is of none"):
        content_of(beside, [ITSELF])
    moved = folder.rename(folder.with_name("0" * 64))
    with pytest.raises(InvalidModelError, match="expected 0000"):
        content_of(moved / "1" / "model.onnx", [ITSELF])


def test_the_stamp_of_a_copys_file_has_no_times(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"four")
    for mode in (KEPT, 0o600, 0o644, KEPT | stat.S_IRGRP, KEPT | stat.S_ISGID):
        path.chmod(mode)
        status = path.stat()
        times = [0, 0] if mode == KEPT else [status.st_mtime_ns, status.st_ctime_ns]
        assert is_kept(status) is (mode == KEPT)
        assert stamp_of(status) == [4, *times, status.st_ino, status.st_dev]


def test_a_mapped_file_shows_what_arrives_later(published: Published) -> None:
    folder = write_copy(published)
    path = folder / "1" / "model.onnx"
    before = map_file(path)
    assert bytes(before.data) == bytes(3 * CHUNK + 1000)
    with path.open("r+b") as file:
        file.write(published.contents[0])
    assert bytes(before.data) == published.contents[0]
    assert before.data.readonly
    assert map_file(path).stamp == before.stamp
