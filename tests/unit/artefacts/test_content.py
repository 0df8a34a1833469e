"""The content of a model's files: digested once, told apart; files written to while they are
read."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from brisk.artefacts import content, store
from brisk.artefacts.content import (
    ITSELF,
    KNOWN,
    check_content,
    content_of,
    digest_of_file,
    find_folder,
    forget_old_notes,
    is_same_content,
    stamps,
    writable_folder,
    written_since,
)
from brisk.errors import ArtefactError, InvalidModelError
from brisk.paths import stamp_of
from brisk.segments.model.sources import BareModel
from support.models.segment_models import chain
from support.runtime.external_data import LOCATION, settled, write_external, write_in_place


def test_only_what_was_written_to_in_place_has_changed(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"one")
    before = stamps(model, [ITSELF])
    assert written_since(model, before) is None
    os.link(model, tmp_path / "another name")
    model.unlink()
    assert written_since(model, before) is None
    (tmp_path / "next").write_bytes(b"two")
    (tmp_path / "next").rename(model)
    assert written_since(model, before) is None
    before = stamps(model, [ITSELF])
    with model.open("ab") as file:
        file.write(b" and more")
    assert written_since(model, before) == model


def test_a_model_that_is_written_to_while_it_is_loaded_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "model.onnx"
    chain(model)
    source = BareModel(model, 1)
    with model.open("r+b") as file:
        file.write(file.read(1))
        file.flush()
        os.utime(file.fileno(), ns=(10**18, 10**18))
    with pytest.raises(InvalidModelError, match="was written to while it was loaded"):
        source.check()


def test_a_session_of_weights_that_were_written_over_since_is_nobody_else_s(
    tmp_path: Path,
) -> None:
    """If nothing holds the file, the mapping shows what was written since."""
    first, second = tmp_path / "1", tmp_path / "2"
    for folder in (first, second):
        folder.mkdir()
        write_external(folder, "initialiser")
    spoiled = BareModel(first / "model.onnx", 1, is_awaited=True)
    spoiled.check()
    spoiled_session = spoiled.open(0)
    for folder in (first, second):
        write_in_place(folder / LOCATION, 5)
    assert spoiled.open_warm(0) is None
    whole = BareModel(second / "model.onnx", 1, is_awaited=True)
    whole.check()
    own = whole.open(0)
    session = whole.open_warm(0) or own
    assert session is not spoiled_session
    x = np.zeros((1, 4), np.float32)
    assert session.session.run(["y"], {"x": x})[0].tolist() == [[5.0] * 4]


@pytest.mark.parametrize("size", [0, 1, 4096, 4 << 20, (4 << 20) + 1, (9 << 20) + 7])
def test_every_byte_of_a_file_counts(tmp_path: Path, size: int) -> None:
    whole = np.random.default_rng(1).integers(0, 255, size, np.uint8).tobytes()
    expected = digest_of(tmp_path, whole)
    assert digest_of(tmp_path, whole) == expected
    assert digest_of(tmp_path, whole + b"\0") != expected
    for place in {0, size // 2, size - 1} if size else set():
        changed = bytearray(whole)
        changed[place] ^= 1
        assert digest_of(tmp_path, changed) != expected
    if size > 8 << 20:  # two chunks that changed places
        chunk = 4 << 20
        swapped = whole[chunk : 2 * chunk] + whole[:chunk] + whole[2 * chunk :]
        assert digest_of(tmp_path, swapped) != expected


def digest_of(folder: Path, data: bytes | bytearray) -> str:
    file = folder / "file"
    file.write_bytes(data)
    with file.open("rb") as opened:
        return digest_of_file(opened.fileno(), len(data))


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Sizes of the files that were read to digest them; the cache is empty."""
    monkeypatch.setenv("BRISK_CACHE_DIR", str(tmp_path / "cache"))
    sizes: list[int] = []

    def watched(descriptor: int, size: int) -> str:
        sizes.append(size)
        return digest_of_file(descriptor, size)

    monkeypatch.setattr(content, "digest_of_file", watched)
    return sizes


def test_a_file_is_read_once_for_as_long_as_it_stays(tmp_path: Path, sizes: list[int]) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"first")
    (tmp_path / "w.bin").write_bytes(b"weights of it")
    settled(tmp_path / "w.bin")
    content = content_of(model, [ITSELF, "w.bin"])
    assert content_of(model, [ITSELF, "w.bin"]) == content
    assert sizes == [5, 13]
    assert dict(check_content(model, model, content.digests)) == stamps(model, [ITSELF, "w.bin"])
    (tmp_path / "w.bin").write_bytes(b"others, again")
    with pytest.raises(ArtefactError, match="the model has changed since it was made"):
        check_content(model, model, content.digests)
    (tmp_path / "w.bin").unlink()
    with pytest.raises(ArtefactError, match=r"a file of its model is missing: .*w\.bin"):
        check_content(model, model, content.digests)


def test_only_a_digest_tells_another_mode_from_a_write_that_puts_the_time_back(
    tmp_path: Path, sizes: list[int]
) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"first")
    settled(model)
    unknown = stamps(model, [ITSELF])
    model.chmod(0o640)
    settled(model)
    before = content_of(model, [ITSELF]).stamps
    for number in range(2):
        os.link(model, tmp_path / f"name {number}")
        settled(model)
        present = stamps(model, [ITSELF])
        assert present != before
        assert is_same_content(model, before, present)
        assert not is_same_content(model, unknown, present), "nobody has read it then"
    status = model.stat()
    model.write_bytes(b"other")
    os.utime(model, ns=(status.st_atime_ns, status.st_mtime_ns))
    settled(model)
    present = stamps(model, [ITSELF])
    assert present[ITSELF][:2] == before[ITSELF][:2]
    assert not is_same_content(model, before, present)
    assert sizes == [5, 5, 5, 5]


def test_a_file_written_just_now_is_read_again(
    tmp_path: Path, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "RACY_NS", 10**12)
    model = tmp_path / "model.onnx"
    model.write_bytes(b"first")
    for _ in range(2):
        content_of(model, [ITSELF])
    assert sizes == [5, 5]


def test_a_file_that_was_written_just_before_it_is_read_is_read_again(
    tmp_path: Path, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long reading it takes: another write may come meanwhile."""
    model = tmp_path / "model.onnx"
    model.write_bytes(b"first")
    digest, clock = content.digest_of_file, [0]

    def slow(descriptor: int, size: int) -> str:
        clock[0] += 10**9
        return digest(descriptor, size)

    monkeypatch.setattr(content, "digest_of_file", slow)
    monkeypatch.setattr(content.time, "time_ns", lambda: clock[0])
    for _ in range(2):
        clock[0] = model.stat().st_ctime_ns + 1
        content_of(model, [ITSELF])
    assert sizes == [5, 5]


def test_where_files_have_whole_seconds_each_is_read_since_another_may_have_its_stamp(
    tmp_path: Path, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So it is on a mounted bucket, whose inodes are numbered anew at each mount: two models of
    one size that were uploaded together."""
    one, two = tmp_path / "one.onnx", tmp_path / "two.onnx"
    one.write_bytes(b"first")
    two.write_bytes(b"other")
    second_ns = 1_700_000_000 * 10**9
    stamp = [5, second_ns, second_ns, *stamp_of(one.stat())[3:]]
    monkeypatch.setattr(content, "stamp_of", lambda status: list(stamp))
    digests = [content_of(each, [ITSELF]).digests for each in (one, two, one)]
    assert digests[0] == digests[2] != digests[1]
    assert sizes == [5, 5, 5]


@pytest.mark.parametrize("text", ["", "[", "[]", "[3, 4]", '[[5], "0", [[]]]', '{"a": 1}', "null"])
def test_a_note_of_a_digest_that_is_none_counts_for_nothing(
    tmp_path: Path, sizes: list[int], text: str
) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"first")
    settled(model)
    content = content_of(model, [ITSELF])
    (note,) = (tmp_path / "cache" / "artefacts" / KNOWN).iterdir()
    note.write_text(text)
    assert content_of(model, [ITSELF]) == content
    assert sizes == [5, 5]


def test_a_model_of_which_nothing_was_made_is_not_read(tmp_path: Path, sizes: list[int]) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(bytes(1 << 20))
    assert find_folder(model) is None
    assert sizes == []
    folder = writable_folder(model)
    assert find_folder(model) == folder
    other = tmp_path / "other.onnx"
    other.write_bytes(bytes((1 << 20) - 1) + b"\1")
    before = len(sizes)
    assert find_folder(other) is None
    assert len(sizes) == before


def test_models_are_told_apart_by_what_no_sketch_shows(tmp_path: Path, sizes: list[int]) -> None:
    paths = [tmp_path / "one.onnx", tmp_path / "two.onnx"]
    data = bytearray(1 << 20)
    for value, path in enumerate(paths):
        data[(1 << 20) // 15 // 2] = value
        path.write_bytes(data)
    one, two = map(writable_folder, paths)
    assert one.parent == two.parent
    assert one != two


def test_notes_are_forgotten_beyond_a_number(tmp_path: Path, sizes: list[int]) -> None:
    paths = [tmp_path / f"{number}.onnx" for number in range(5)]
    for age, path in enumerate(reversed(paths)):
        path.write_bytes(b"%d" % age)
        settled(path)
        content_of(path, [ITSELF])
    notes = tmp_path / "cache" / "artefacts" / KNOWN
    assert len(list(notes.iterdir())) == 5
    forget_old_notes(KNOWN, 4)
    assert len(list(notes.iterdir())) == 2
    sizes.clear()
    content_of(paths[0], [ITSELF])
    assert sizes == [], "what was read last is known"
