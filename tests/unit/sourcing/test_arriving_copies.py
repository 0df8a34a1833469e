"""A copy as the courier writes it: nothing that was not verified, and all of that for readers."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from brisk.artefacts.container import HEADER_BYTES, Container
from brisk.artefacts.store import artefacts_directory
from brisk.copies.connection import resolve
from brisk.copies.local import PROGRESS, LocalCopy, progress_header
from brisk.copies.manifest import Range, write_manifest
from brisk.copies.remote import WHOLE
from brisk.errors import ArtefactError, InvalidConfigurationError
from brisk.paths import KEPT
from brisk.sourcing.arriving import ArrivingCopy
from brisk.sourcing.completing import publish_form
from brisk.sourcing.policies.stretches import bits_of
from brisk.sourcing.room import make_copy
from support.remote.published import Published, chunk_of, fill, form_of, new_copy, publish

CHUNK = 1 << 16
FORM = "resnet.segments"


@pytest.fixture
def published(tmp_path: Path, private_cache: None) -> Published:
    return publish(tmp_path / "p", 10 * CHUNK + 77, chunk_bytes=CHUNK, weights_bytes=3 * CHUNK)


def made(tmp_path: Path, published: Published) -> ArrivingCopy:
    return new_copy(tmp_path / "cache" / "remote" / published.sha256, published)


HEADS = ((100, 2 * CHUNK), (4 * CHUNK, CHUNK), (8 * CHUNK + 1, 2 * CHUNK + 76))
"""Ranges of the model that are its head: whole in them are the second chunk, the fifth, the tenth
and the short last one."""

COVERED = {1, 4, 9, 10}


def with_head(tmp_path: Path) -> tuple[Published, ArrivingCopy]:
    published = publish(
        tmp_path / "q",
        10 * CHUNK + 77,
        chunk_bytes=CHUNK,
        weights_bytes=3 * CHUNK,
        head_ranges=HEADS,
    )
    return published, made(tmp_path, published)


def test_chunks_that_are_all_head_are_here_when_that_is(
    tmp_path: Path, private_cache: None
) -> None:
    published, copy = with_head(tmp_path)
    covered = []
    for index in range(*copy.layout.file(2)):
        assert copy.put(index, [chunk_of(published, copy, index)])
        covered.append(copy.note_covered())
        assert not copy.note_covered()
    assert covered[0] == 0  # its second chunk ends a hundred bytes behind the head's first
    assert sum(covered) == sum(1 << index for index in COVERED)
    here = copy.here()
    assert {index for index in range(14) if here >> index & 1} == COVERED
    for index in COVERED:
        assert copy.read(*copy.layout.range_of(index)) == chunk_of(published, copy, index)


def test_a_chunk_that_the_head_contradicts_is_not(tmp_path: Path, private_cache: None) -> None:
    published, copy = with_head(tmp_path)
    fill(published, copy, (2,))
    place = copy.layout.range_of(4)
    with (copy.folder / "1" / "model.onnx").open("r+b") as file:
        file.seek(place.offset)
        file.write(b"?")
    assert copy.note_covered() == sum(1 << index for index in COVERED - {4})


def whole_copy(tmp_path: Path, published: Published) -> tuple[ArrivingCopy, Path]:
    """Return a whole copy, and an entry's file that names it."""
    copy = made(tmp_path, published)
    fill(published, copy, (2, 0, 1))
    copy.finish()
    remote = tmp_path / "model.remote"
    remote.write_text(json.dumps({"url": "http://127.0.0.1:1/x", "sha256": published.sha256}))
    return copy, remote


def test_a_whole_copy_says_where_its_model_is(tmp_path: Path, published: Published) -> None:
    """The stub that asks imports nothing that reads manifests for it."""
    copy, remote = whole_copy(tmp_path, published)
    program = (
        "import pathlib, sys; from brisk.copies.connection import resolve;"
        f"print(resolve(pathlib.Path({str(remote)!r})), 'brisk.copies.manifest' in sys.modules)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert answer.stdout.decode() == f"{copy.model} False\n"


@pytest.mark.parametrize("name", ["manifest.json", "whole"])
def test_one_that_is_damaged_is_asked_of_the_courier(
    name: str, tmp_path: Path, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, remote = whole_copy(tmp_path, published)
    damaged = copy.folder / name
    damaged.chmod(0o600)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    if name == "whole":
        assert resolve(remote) == copy.model  # by its manifest
        (copy.folder / "manifest.json").unlink()
    monkeypatch.setenv("BRISK_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("BRISK_PYTHON", "/bin/false")
    with pytest.raises(InvalidConfigurationError, match="ended with status 1"):
        resolve(remote)


def with_form(tmp_path: Path) -> Published:
    return publish(tmp_path / "f", 4 * CHUNK, chunk_bytes=CHUNK, forms={FORM: form_of(3 * CHUNK)})


def test_files_are_of_their_full_size_and_only_ours_from_the_beginning(
    tmp_path: Path, published: Published
) -> None:
    copy = made(tmp_path, published)
    reader = LocalCopy(copy.folder)
    for number in (*published.manifest.own, published.manifest.gathered):
        status = reader.path(number).stat()
        assert status.st_size == published.manifest.files[number].size
        assert status.st_mode & 0o7777 == KEPT
    for folder in (copy.folder, *reader.model.parents[:1], copy.folder.parent):
        assert folder.stat().st_mode & 0o777 == 0o700
    assert copy.here() == 0
    assert not reader.is_whole


def test_a_chunk_is_kept_if_its_digest_is_right_and_readers_see_it(
    tmp_path: Path, published: Published
) -> None:
    copy = made(tmp_path, published)
    reader = LocalCopy(copy.folder)
    content = chunk_of(published, copy, 3)
    assert copy.put(3, [content[:100], memoryview(content)[100:]])
    assert copy.here() == 1 << 3
    assert reader.is_here(reader.spans([Range(0, 3 * CHUNK, CHUNK)]))
    assert not reader.is_here(reader.spans([Range(0, 3 * CHUNK - 1, CHUNK)]))
    assert not reader.is_here(reader.spans([Range(0, 3 * CHUNK + 1, CHUNK)]))
    with reader.model.open("rb") as file:
        assert os.pread(file.fileno(), CHUNK, 3 * CHUNK) == content


@pytest.mark.parametrize("damage", ["one byte", "cut off", "longer", "another chunk", "nothing"])
def test_a_chunk_of_another_digest_changes_nothing(
    tmp_path: Path, published: Published, damage: str
) -> None:
    copy = made(tmp_path, published)
    content = chunk_of(published, copy, 3)
    wrong = {
        "one byte": content[:-1] + bytes([content[-1] ^ 1]),
        "cut off": content[:-1],
        "longer": content + b"\0",
        "another chunk": chunk_of(published, copy, 4),
        "nothing": b"",
    }[damage]
    assert not copy.put(3, [wrong])
    assert copy.here() == 0
    assert copy.read(0, 3 * CHUNK, CHUNK) == bytes(CHUNK)


def test_the_head_stands_in_the_models_files_when_it_has_come(
    tmp_path: Path, published: Published
) -> None:
    copy = made(tmp_path, published)
    gathered = published.manifest.gathered
    fill(published, copy, (gathered,))
    assert LocalCopy(copy.folder).has_head
    for part in published.manifest.head:
        content = published.contents[part.file][part.offset : part.offset + part.size]
        assert copy.read(part.file, part.offset, part.size) == content
    assert copy.here() == bits_of(copy.layout.file(gathered))  # no chunk of the model's is


def test_what_is_whole_is_on_the_disk_and_marked(tmp_path: Path, published: Published) -> None:
    copy = made(tmp_path, published)
    fill(published, copy, published.manifest.own)
    assert not copy.is_whole
    copy.finish()
    assert copy.is_whole
    assert LocalCopy(copy.folder).is_whole
    for number in published.manifest.own:
        assert LocalCopy(copy.folder).path(number).read_bytes() == published.contents[number]


def test_what_is_half_made_is_no_copy_and_is_made_anew(
    tmp_path: Path, published: Published
) -> None:
    folder = tmp_path / "cache" / "remote" / published.sha256
    (folder / "1").mkdir(parents=True)
    for each in (folder, folder.parent):
        each.chmod(0o700)
    (folder / "1" / "model.onnx").write_bytes(b"left")
    copy = made(tmp_path, published)
    assert copy.read(0, 0, 4) == bytes(4)


def test_what_cannot_be_made_leaves_nothing(tmp_path: Path, published: Published) -> None:
    folder = tmp_path / "cache" / "remote" / published.sha256
    folder.parent.mkdir(parents=True)
    folder.parent.chmod(0o777)
    with pytest.raises(PermissionError, match="could exchange"):
        make_copy(folder, write_manifest(published.manifest), published.manifest)
    assert not folder.exists()


# After a boot, which nothing in memory survives for sure.


def forget_the_boot(copy: ArrivingCopy) -> Path:
    copy.close()
    progress = copy.folder / PROGRESS
    content = bytearray(progress.read_bytes())
    content[:64] = content[:64].replace(progress_header()[8:12], b"0000")
    progress.write_bytes(content)
    return copy.folder


def test_after_a_boot_chunks_are_compared_with_their_digests(
    tmp_path: Path, published: Published
) -> None:
    copy = made(tmp_path, published)
    for index in (0, 2, 5):
        assert copy.put(index, [chunk_of(published, copy, index)])
    fill(published, copy, (published.manifest.gathered,))
    folder = forget_the_boot(copy)
    with (folder / "1" / "model.onnx").open("r+b") as file:
        file.seek(2 * CHUNK + 5)
        file.write(b"\xff\x00")
    again = ArrivingCopy(folder)
    assert not again.is_trusted
    assert again.here() == 0
    looked_at = list(again.verify())
    assert again.is_trusted
    head = bits_of(again.layout.file(published.manifest.gathered))
    assert again.here() == 1 << 0 | 1 << 5 | head
    assert set(looked_at) >= {0, 2, 5}
    assert len(looked_at) < again.layout.count  # holes are not read
    LocalCopy(folder)  # which refuses a progress of another boot


def test_after_a_boot_a_whole_copy_is_not_read_again(tmp_path: Path, published: Published) -> None:
    copy = made(tmp_path, published)
    fill(published, copy, (*published.manifest.own, published.manifest.gathered))
    copy.finish()
    again = ArrivingCopy(forget_the_boot(copy))
    looked_at = set(again.verify())
    assert looked_at == set(range(*again.layout.file(published.manifest.gathered)))
    assert again.here() == (1 << again.layout.count) - 1


def test_a_progress_that_is_cut_off_is_made_anew(tmp_path: Path, published: Published) -> None:
    copy = made(tmp_path, published)
    assert copy.put(1, [chunk_of(published, copy, 1)])
    copy.close()
    os.truncate(copy.folder / PROGRESS, 70)
    again = ArrivingCopy(copy.folder)
    assert not again.is_trusted
    list(again.verify())
    assert again.here() == 1 << 1


# Prepared forms.


def test_a_form_has_this_machines_seal_here_and_none_for_others(
    tmp_path: Path, private_cache: None
) -> None:
    published = with_form(tmp_path)
    copy = made(tmp_path, published)
    number = published.manifest.form_named(FORM)
    assert number is not None
    copy.reserve_form(number)
    fill(published, copy, (number,))
    path = copy.folder / "forms" / FORM
    assert path.stat().st_mode & 0o7777 == KEPT
    container = Container(path)
    assert container.content == {"model": "m"}
    container.verify(0)
    for offset, size in ((0, HEADER_BYTES), (70, 100), (95, 1), (96, CHUNK), (CHUNK, 10)):
        content = published.contents[number][offset : offset + size]
        assert copy.read(number, offset, size) == content
    assert copy.read_now(number, 0, HEADER_BYTES) is None  # it is not as it is in the file
    digest = hashlib.sha256(copy.read(number, 0, CHUNK)).digest()
    assert digest == published.manifest.chunk_digest(number, 0)


def test_a_form_says_where_its_parts_lie_in_two_steps(tmp_path: Path, private_cache: None) -> None:
    published = with_form(tmp_path)
    copy = made(tmp_path, published)
    number = published.manifest.form_named(FORM)
    assert number is not None
    copy.reserve_form(number)
    assert copy.outline(number) == (Range(number, 0, HEADER_BYTES),)
    first = copy.layout.file(number).start
    assert copy.put(first, [chunk_of(published, copy, first)])
    _, tail = copy.outline(number)
    size = published.manifest.files[number].size
    assert tail.offset + tail.size == size
    assert published.contents[number][tail.offset :].startswith(b'{"blobs"')


def test_what_is_no_form_is_refused(tmp_path: Path, private_cache: None) -> None:
    forms = {FORM: form_of(3 * CHUNK), "x": b"BRISKART" + bytes(2 * CHUNK)}
    published = publish(tmp_path / "f", CHUNK, chunk_bytes=CHUNK, forms=forms)
    copy = made(tmp_path, published)
    number = published.manifest.form_named("x")
    assert number is not None
    copy.reserve_form(number)
    fill(published, copy, (number,))
    with pytest.raises(ArtefactError, match="it is no prepared form"):
        copy.outline(number)


def test_a_whole_form_lies_among_the_artefacts_of_its_model(
    tmp_path: Path, private_cache: None
) -> None:
    published = with_form(tmp_path)
    copy = made(tmp_path, published)
    number = published.manifest.form_named(FORM)
    assert number is not None
    copy.reserve_form(number)
    fill(published, copy, (number,))
    mapped = Container(copy.folder / "forms" / FORM)
    with pytest.raises(ArtefactError, match="is not whole"):
        publish_form(copy, number)
    fill(published, copy, published.manifest.own)
    copy.finish()
    publish_form(copy, number)
    publish_form(copy, number)  # it may be there already
    model = published.manifest.files[published.manifest.model]
    path = artefacts_directory() / model.sketch / model.digest / FORM
    assert path.stat().st_mode & 0o7777 == 0o600
    assert path.samefile(copy.folder / "forms" / FORM)
    assert Container(path).content == {"model": "m"}
    mapped.verify(0)  # who had mapped it goes on
    assert (path.parent / "files.json").read_bytes() == b'["data/weights.bin"]'


def test_a_form_is_verified_after_a_boot_beside_a_whole_copy(
    tmp_path: Path, private_cache: None
) -> None:
    published = with_form(tmp_path)
    copy = made(tmp_path, published)
    number = published.manifest.form_named(FORM)
    assert number is not None
    fill(published, copy, published.manifest.own)
    copy.finish()
    copy.reserve_form(number)
    fill(published, copy, (number,))
    again = ArrivingCopy(forget_the_boot(copy))
    list(again.verify())
    assert (copy.folder / WHOLE).exists()
    chunks = bits_of(again.layout.file(number))
    assert again.here() & chunks == chunks
