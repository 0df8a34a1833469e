"""Artefact files: what is written is read, and what is damaged anywhere is refused."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from brisk.artefacts import store
from brisk.artefacts.container import (
    ALIGNMENT,
    HEADER_BYTES,
    PAGE_BYTES,
    Container,
    checksum,
)
from brisk.errors import ArtefactError
from support.containers import write_container
from support.runtime import external_data

BLOBS = [
    np.arange(5 * PAGE_BYTES + 13, dtype=np.uint32).view(np.uint8)[: 5 * PAGE_BYTES + 13],
    np.zeros(0, np.uint8),
    np.full(7, 255, np.uint8),
    np.full(PAGE_BYTES, 1, np.uint8),
]


def write(path: Path) -> Path:
    return write_container(path, {"name": "é", "numbers": [1, 2.5]}, BLOBS)


def read_everything(path: Path) -> None:
    container = Container(path)
    for number in range(len(container)):
        container.verify(number)


def test_blobs_and_content_come_back_as_they_were(tmp_path: Path) -> None:
    container = Container(write(tmp_path / "a"))
    assert container.content == {"name": "é", "numbers": [1, 2.5]}
    for number, blob in enumerate(BLOBS):
        container.verify(number)
        np.testing.assert_array_equal(container.view(number), blob)


def test_blobs_lie_where_kernels_can_use_them(tmp_path: Path) -> None:
    container = Container(write(tmp_path / "a"))
    addresses = [container.view(number).ctypes.data for number in (0, 2, 3)]
    assert [address % PAGE_BYTES for address in (addresses[0], addresses[2])] == [0, 0]
    assert addresses[1] % ALIGNMENT == 0


def test_a_blob_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="read-only"):
        Container(write(tmp_path / "a")).view(0)[0] = 1


def test_a_flipped_bit_in_any_region_is_found(tmp_path: Path) -> None:
    whole = write(tmp_path / "a").read_bytes()
    container = Container(tmp_path / "a")
    used = [*range(HEADER_BYTES), *range(len(whole) - 150, len(whole), 7)]
    for number, blob in enumerate(BLOBS):
        start = container.place(number).offset
        used += range(start, start + blob.size, 509)
    for position in used:
        damaged = bytearray(whole)
        damaged[position] ^= 0x10
        (tmp_path / "b").write_bytes(damaged)
        with pytest.raises(ArtefactError):
            read_everything(tmp_path / "b")


@pytest.mark.parametrize("length", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, 200, PAGE_BYTES, -1])
def test_a_file_cut_off_anywhere_is_refused(tmp_path: Path, length: int) -> None:
    whole = write(tmp_path / "a").read_bytes()
    (tmp_path / "b").write_bytes(whole[:length])
    with pytest.raises(ArtefactError, match=r"no artefact|bytes"):
        Container(tmp_path / "b")


def test_bytes_appended_are_noticed(tmp_path: Path) -> None:
    whole = write(tmp_path / "a").read_bytes()
    (tmp_path / "b").write_bytes(whole + b"\0")
    with pytest.raises(ArtefactError, match="were written"):
        Container(tmp_path / "b")


def test_there_is_no_blob_beyond_the_last(tmp_path: Path) -> None:
    container = Container(write(tmp_path / "a"))
    for number in (-1, len(BLOBS)):
        with pytest.raises(ArtefactError, match="no blob"):
            container.view(number)


def test_a_checksum_tells_pages_apart_that_only_changed_places() -> None:
    pages = np.random.default_rng(0).integers(0, 255, (3, PAGE_BYTES), np.uint8)
    assert checksum(pages.reshape(-1)) != checksum(pages[[1, 0, 2]].reshape(-1))


def test_a_checksum_depends_on_the_length_of_zeros() -> None:
    assert len({checksum(bytes(size)) for size in (0, 1, 4096, 8192)}) == 4


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of the blobs whose bytes were compared with checksums."""
    sizes: list[int] = []

    def watched(content: np.ndarray) -> str:
        sizes.append(content.size)
        return checksum(content)

    monkeypatch.setattr("brisk.artefacts.container.checksum", watched)
    return sizes


def settled(path: Path, compared: list[int]) -> Path:
    """Written long enough ago that a change shows in its times; what writing it compared is gone
    from ``compared``.
    """
    compared.clear()
    return external_data.settled(path)


def test_what_was_compared_since_the_machine_started_is_not_compared_again(
    tmp_path: Path, compared: list[int]
) -> None:
    path = settled(write(tmp_path / "model.segments"), compared)
    read_everything(path)
    assert len(compared) == len(BLOBS)
    read_everything(path)
    assert len(compared) == len(BLOBS)
    Container(path).compare(0)
    assert len(compared) == len(BLOBS) + 1, "who asks to have it compared is not told it was"


def test_a_file_changed_since_is_compared_whatever_its_times_say(
    tmp_path: Path, compared: list[int]
) -> None:
    path = settled(write(tmp_path / "model.segments"), compared)
    read_everything(path)
    before, place = path.stat(), Container(path).place(0)
    with path.open("r+b") as file:
        file.seek(place.offset)
        file.write(b"\x55")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(ArtefactError, match=r"blob 0 at .* is damaged"):
        read_everything(path)


def test_a_copy_and_another_boot_are_compared(
    tmp_path: Path, compared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = settled(write(tmp_path / "model.segments"), compared)
    read_everything(path)
    shutil.copy2(path, tmp_path / "other.segments")
    shutil.copy2(path.with_suffix(".verified"), tmp_path / "other.verified")
    read_everything(tmp_path / "other.segments")
    assert len(compared) == 2 * len(BLOBS)
    (tmp_path / "boot").write_text("another\n")
    monkeypatch.setattr(store, "_BOOT", tmp_path / "boot")
    read_everything(path)
    assert len(compared) == 3 * len(BLOBS)


@pytest.mark.parametrize("text", ["", "[", "[]", '{"boot": 3}', "null"])
def test_a_note_that_is_none_counts_for_nothing(
    tmp_path: Path, compared: list[int], text: str
) -> None:
    path = settled(write(tmp_path / "model.segments"), compared)
    path.with_suffix(".verified").write_text(text)
    read_everything(path)
    assert len(compared) == len(BLOBS)


def test_a_file_written_just_now_is_not_noted(
    tmp_path: Path, compared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "model.segments")
    monkeypatch.setattr("brisk.artefacts.store.RACY_NS", 10**12)
    read_everything(path)
    assert not path.with_suffix(".verified").exists()


def test_damage_is_found_by_either_of_two_threads(tmp_path: Path) -> None:
    blobs = [np.full(1 << 20, number, np.uint8) for number in range(16)]
    path = write_container(tmp_path / "large.segments", None, blobs)
    Container(path).verify_all(range(16), 2)
    for number in (0, 9, 15):
        copy = tmp_path / f"damaged{number}.segments"
        shutil.copy2(path, copy)
        with copy.open("r+b") as file:
            file.seek(Container(copy).place(number).offset + 77)
            file.write(b"\xff")
        with pytest.raises(ArtefactError, match=f"blob {number} at"):
            Container(copy).verify_all(range(16), 2)
