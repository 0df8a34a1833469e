"""Copies that a boot, or another machine's courier, has left: what is noted of them is not taken
for true, and what others have mapped stays as it is."""

from __future__ import annotations

import hashlib
import random
import resource
from pathlib import Path

import pytest

from brisk.copies.local import HEADER_BYTES, HERE, PROGRESS, LocalCopy
from brisk.copies.manifest import Manifest, Range, write_manifest
from brisk.sourcing.arriving import ArrivingCopy
from support.remote.published import Published, fill, listed, new_copy, publish

CHUNK = 1 << 16

pytestmark = pytest.mark.usefixtures("private_cache")


def filled(folder: Path, published: Published) -> ArrivingCopy:
    """Return a copy whose chunks are all here, those of the model first."""
    copy = new_copy(folder, published)
    fill(published, copy, (*published.manifest.own, published.manifest.gathered))
    return copy


def forget_the_boot(folder: Path) -> None:
    with (folder / PROGRESS).open("r+b") as file:
        file.write(bytes(HEADER_BYTES))


def with_another_head(folder: Path) -> Published:
    """A manifest whose head comes first, and is not what the model has there."""
    source = random.Random(1)
    model, head = source.randbytes(3 * CHUNK), source.randbytes(CHUNK)
    manifest = Manifest(
        files=(
            listed("gathered", head, chunk_bytes=CHUNK),
            listed("model.onnx", model, chunk_bytes=CHUNK),
        ),
        model=1,
        gathered=0,
        chunk_bytes=CHUNK,
        head=(Range(1, CHUNK // 2, CHUNK),),
        order=(Range(1, 0, 3 * CHUNK),),
        cuts=(),
        segments=(),
    )
    text = write_manifest(manifest)
    return Published(folder, manifest, hashlib.sha256(text).hexdigest(), (head, model))


def test_a_copy_that_was_compared_is_not_written_to(tmp_path: Path) -> None:
    published = with_another_head(tmp_path / "published")
    copy = filled(tmp_path / "remote" / published.sha256, published)
    copy.finish()
    copy.close()
    forget_the_boot(copy.folder)
    again = ArrivingCopy(copy.folder)
    assert not again.is_trusted
    list(again.verify())
    assert again.is_whole
    assert again.model.read_bytes() == published.contents[1]
    again.close()


def test_what_is_noted_is_forgotten_where_it_lies(tmp_path: Path) -> None:
    """A file that is cut off, be it for a moment, ends whoever has mapped it."""
    published = publish(tmp_path / "published", 4 * CHUNK, chunk_bytes=CHUNK)
    copy = filled(tmp_path / "remote" / published.sha256, published)
    reader = LocalCopy(copy.folder)
    copy.close()
    forget_the_boot(copy.folder)
    size = (copy.folder / PROGRESS).stat().st_size
    most, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (HEADER_BYTES, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            ArrivingCopy(copy.folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    assert (copy.folder / PROGRESS).stat().st_size == size
    assert reader.is_whole
    ArrivingCopy(copy.folder).close()
    assert (copy.folder / PROGRESS).read_bytes().count(HERE) == 0
    assert not reader.is_here(reader.spans(reader.all_of_it))
