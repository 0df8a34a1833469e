"""What the courier does before it calls a copy whole, and what it leaves if it ends before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from brisk.copies.local import HEADER_BYTES, PROGRESS, LocalCopy, progress_header
from brisk.copies.manifest import write_manifest
from brisk.copies.remote import WHOLE
from brisk.errors import ArtefactError, UnavailableError
from brisk.sourcing.arriving import ArrivingCopy
from brisk.sourcing.room import make_copy
from support.remote.published import Published, publish

CHUNK = 1 << 16

pytestmark = pytest.mark.usefixtures("private_cache")


@pytest.fixture
def published(tmp_path: Path) -> Published:
    return publish(tmp_path / "p", 10 * CHUNK + 77, chunk_bytes=CHUNK, weights_bytes=3 * CHUNK)


def filled(tmp_path: Path, published: Published) -> ArrivingCopy:
    """Return a copy whose chunks are all here."""
    folder = tmp_path / "cache" / "remote" / published.sha256
    make_copy(folder, write_manifest(published.manifest), published.manifest)
    copy = ArrivingCopy(folder)
    for number in (published.manifest.gathered, *published.manifest.own):
        for index in range(*copy.layout.file(number)):
            part = copy.layout.range_of(index)
            content = published.contents[number][part.offset : part.offset + part.size]
            assert copy.put(index, [content])
    return copy


def test_a_comparison_that_is_given_up_leaves_the_copy_as_it_was(
    tmp_path: Path, published: Published
) -> None:
    copy = filled(tmp_path, published)

    def give_up() -> None:
        raise UnavailableError("closed")

    with pytest.raises(UnavailableError, match="closed"):
        copy.finish(give_up)
    assert not copy.is_whole
    assert not copy.is_refused
    copy.finish()
    assert copy.is_whole


def test_a_file_that_was_damaged_meanwhile_is_not_the_manifests_fault(
    tmp_path: Path, published: Published
) -> None:
    """Its chunks are compared again when the copy is opened next, and only they are missing."""
    copy = filled(tmp_path, published)
    all_of_it = copy.here()
    with (copy.folder / "1" / "model.onnx").open("r+b") as file:
        file.seek(5 * CHUNK)
        file.write(b"damage")
    with pytest.raises(OSError, match="damaged") as damaged:
        copy.finish()
    assert damaged.value.filename == str(copy.folder / "1" / "model.onnx")
    assert not copy.is_whole
    assert not copy.is_refused
    with pytest.raises(ArtefactError, match="to be verified"):
        LocalCopy(copy.folder)
    copy.close()
    again = ArrivingCopy(copy.folder)
    assert not again.is_trusted
    list(again.verify())
    assert again.here() == all_of_it & ~(1 << 5)


def test_chunks_count_again_although_their_verification_after_a_boot_was_interrupted(
    tmp_path: Path, published: Published
) -> None:
    copy = filled(tmp_path, published)
    all_of_it = copy.here()
    copy.close()
    progress = copy.folder / PROGRESS
    progress.write_bytes(
        progress_header()[:8].ljust(HEADER_BYTES, b"0") + progress.read_bytes()[64:]
    )
    interrupted = ArrivingCopy(copy.folder)
    assert not interrupted.is_trusted
    verification = interrupted.verify()
    for _ in range(3):
        next(verification)
    interrupted.close()  # the courier ends
    again = ArrivingCopy(copy.folder)
    assert not again.is_trusted
    assert len(list(again.verify())) == again.layout.count
    assert again.here() == all_of_it
    again.close()
    last = ArrivingCopy(copy.folder)
    assert last.is_trusted
    assert last.here() == all_of_it
    assert not os.path.exists(copy.folder / WHOLE)
