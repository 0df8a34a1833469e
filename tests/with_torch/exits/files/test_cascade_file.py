"""The file of caches: what is written is read, anything else is refused in words."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import math
import os
from pathlib import Path

import numpy as np
import onnx
import pytest

from brisk.cli.commands.caches.train import _Subject, _write
from brisk.exits.cascade_file import digest_of, read_cascade, write_cascade
from brisk.exits.files.container import (
    _DIGEST_BYTES,
    _PREFIX,
    ALIGNMENT,
    DamagedFileError,
    read_container,
    tapped_values,
    write_container,
)
from brisk.exits.heads.exit_head import empty_head
from brisk.exits.learning.exporting import export_head
from support.exits.cascades import cascade, network


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.caches"
    write_cascade(path, cascade())
    return path


def test_what_is_read_looks_up_as_what_was_written(tmp_path: Path) -> None:
    written, path = cascade(), tmp_path / "model.caches"
    write_cascade(path, written)
    again = read_cascade(path, "digest")
    assert again.levels == written.levels
    assert (
        dataclasses.replace(again.scores, is_certain=written.scores.is_certain) == written.scores
    )
    for ours, theirs in zip(again.exits, written.exits, strict=True):
        assert (ours.point, ours.variant, ours.shape) == (
            theirs.point,
            theirs.variant,
            theirs.shape,
        )
        hidden = np.random.default_rng(0).random((3, *ours.shape), np.float32)
        one, other = ours.evaluate(hidden), theirs.evaluate(hidden)
        np.testing.assert_array_equal(one.logits, other.logits)
        np.testing.assert_array_equal(one.scores, other.scores)
        np.testing.assert_array_equal(one.near, other.near)


def test_caches_that_cannot_be_written_leave_those_before_and_their_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the data they could never adapt again."""

    def failing(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = dataclasses.replace(cascade(), revision=1)
    subject = _Subject(tmp_path / "model.onnx", None, "", None, is_whole=True)  # type: ignore[arg-type]
    path, data = tmp_path / "model.caches", tmp_path / "model.reference"
    write_cascade(path, before)
    data.write_bytes(b"data")
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", failing)
        with pytest.raises(OSError, match="No space left"):
            list(_write(subject, cascade(), None))
    assert read_cascade(path, None).revision == 1
    assert data.exists()
    assert list(_write(subject, cascade(), None)) == [path]
    assert read_cascade(path, None).revision == 0
    assert not data.exists()
    assert list(tmp_path.iterdir()) == [path]


def test_caches_of_another_model_are_refused(file: Path) -> None:
    with pytest.raises(DamagedFileError, match=r"trained for another model.*train again"):
        read_cascade(file, "another")


@pytest.mark.parametrize("location", ["weights.bin", "model.onnx_data", "sub/weights.bin"])
def test_the_digest_is_of_external_data_too(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "1"
    (folder / location).parent.mkdir(parents=True)
    model, weights = folder / "model.onnx", folder / location
    onnx.save(network(), model)
    inside = digest_of(model)
    (folder / "readme.txt").write_text("something else")
    assert digest_of(model) == inside
    (folder / "readme.txt").unlink()
    onnx.save(network(), model, save_as_external_data=True, location=location, size_threshold=0)
    before = digest_of(model)
    changed = bytearray(weights.read_bytes())
    changed[0] ^= 1
    weights.write_bytes(changed)
    assert digest_of(model) != before


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_cut_off_file_is_refused(file: Path, share: float) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(DamagedFileError):
        read_cascade(file, "digest")


def test_a_single_changed_byte_is_noticed(file: Path) -> None:
    data = bytearray(file.read_bytes())
    for place in range(12, len(data), len(data) // 40):
        changed = bytearray(data)
        changed[place] ^= 1
        file.write_bytes(changed)
        with pytest.raises(DamagedFileError):
            read_cascade(file, "digest")


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.caches"
    path.write_bytes(b"\x80\x04" + b"pickle" * 50)
    with pytest.raises(DamagedFileError, match="no file of learned caches"):
        read_cascade(path, None)


@pytest.mark.parametrize(
    ("number", "words"),
    [(99, "format 99, expected"), (3, "trained for another engine; train again with")],
)
def test_another_format_is_refused(file: Path, number: int, words: str) -> None:
    data = bytearray(file.read_bytes())
    data[8] = number
    file.write_bytes(data)
    with pytest.raises(DamagedFileError, match=words):
        read_cascade(file, "digest")


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"model_digest": "digest"},
        {"model_digest": "digest", "scores": {"value": "x", "position": "many"}},
    ],
)
def test_a_header_of_something_else_is_refused(tmp_path: Path, header: dict[str, object]) -> None:
    path = tmp_path / "model.caches"
    write_container(path, header, {"a": np.zeros(3, np.float32)})
    with pytest.raises(DamagedFileError, match="not that of caches"):
        read_cascade(path, "digest")


@pytest.mark.parametrize(
    ("where", "key", "value", "words"),
    [
        ("level", "accuracy", 1.0, "accuracy is 1.0; expected one between 0 and 1"),
        ("level", "accuracy", math.nan, "accuracy is nan; expected a finite number"),
        ("level", "thresholds", [math.nan, 0.5], "threshold is nan"),
        ("header", "confidence", 0, "confidence is 0.0"),
        ("expected", "base_s", "much", "base_s is 'much'; expected a finite number"),
        ("expected", "base_s", 10**400, "not that of caches: OverflowError"),
        ("exit", "saved_s", math.inf, "saved_s is inf"),
        ("exit", "variant", "../other", "variant is '../other'; expected a name"),
        ("exit", "variant", "a" * 1000, "variant is 'aaa"),
    ],
)
def test_numbers_and_names_that_nothing_can_be_done_with_are_refused(
    file: Path, where: str, key: str, value: object, words: str
) -> None:
    """An accuracy of 1 would end the worker with the first audited answer; exits are exported to
    files of their names."""
    container = read_container(file)
    header = json.loads(json.dumps(container.header))
    parts = {"header": header, "expected": header["expected"]}
    parts |= {"level": header["levels"][0], "exit": header["exits"][1]}
    parts[where][key] = value
    data = file.read_bytes()
    magic, number, length = _PREFIX.unpack_from(data)
    parsed = json.loads(data[_PREFIX.size :][:length])
    text = json.dumps({**parsed, "header": header}).encode()
    start = _PREFIX.size + length
    blobs = data[start + -start % ALIGNMENT : -_DIGEST_BYTES]
    body = _PREFIX.pack(magic, number, len(text)) + text
    body += bytes(-len(body) % ALIGNMENT) + blobs
    file.write_bytes(body + hashlib.sha256(body).digest())
    with pytest.raises(DamagedFileError, match=words):
        read_cascade(file, "digest")


def test_a_file_without_its_exit_models_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.caches"
    write_cascade(path, cascade())
    container = read_container(path)
    write_container(path, container.header, {"0.alien": np.zeros(3, np.float32)})
    with pytest.raises(DamagedFileError, match=r"0\.onnx"):
        read_cascade(path, "digest")


def test_an_exit_model_of_another_shape_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.caches"
    write_cascade(path, cascade())
    container = read_container(path)
    other = export_head(empty_head("Pool(4096)", (3, 5, 5), 10), (3, 5, 5))
    tensors = {**container.tensors, "1.onnx": np.frombuffer(other, np.uint8)}
    write_container(path, container.header, tensors)
    with pytest.raises(DamagedFileError, match=r"reads and gives 'hidden' \['rows', 3, 5, 5\]"):
        read_cascade(path, "digest")


def test_taps_are_read_without_the_rest_of_the_file(file: Path, tmp_path: Path) -> None:
    assert tapped_values(file) == cascade().taps
    assert tapped_values(tmp_path / "none.caches") == ()
    (tmp_path / "damaged.caches").write_bytes(file.read_bytes()[:-1])
    assert tapped_values(tmp_path / "damaged.caches") == ()
    size = file.stat().st_size
    os.truncate(file, size - 1000)
    os.truncate(file, size)  # zeros instead of what a start does not wait for
    assert tapped_values(file) == cascade().taps
    with pytest.raises(DamagedFileError, match="not those that were written"):
        read_cascade(file, "digest")


def test_publishing_leaves_the_old_file_where_it_is_interrupted(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = file.read_bytes()

    def interrupted(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_cascade(file, cascade())
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]
