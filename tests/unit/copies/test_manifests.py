"""What a manifest may say: written and read again, and each contradiction refused."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brisk.copies.manifest import (
    DIGEST_BYTES,
    LEAST_CHUNK_BYTES,
    MOST_CHUNK_BYTES,
    MOST_CUTS,
    MOST_FILE_BYTES,
    ListedSegment,
    Manifest,
    Range,
    read_manifest,
    write_manifest,
)
from brisk.copies.remote import Remote, read_remote
from brisk.errors import InvalidModelError
from support.remote.published import listed

CHUNK = 1 << 16
SHA256 = "0123456789abcdef" * 4


def example() -> Manifest:
    """A model of three chunks and a bit, its weights of two, its head, and a form of one."""
    model, weights = bytes(range(256)) * 800, b"\1" * (2 * CHUNK)
    head = (Range(0, 0, 1000), Range(1, 5, 0), Range(0, 100_000, 500))
    return Manifest(
        files=(
            listed("model.onnx", model, chunk_bytes=CHUNK),
            listed("data/weights.bin", weights, chunk_bytes=CHUNK),
            listed("gathered", model[:1000] + model[100_000:100_500], chunk_bytes=CHUNK),
            listed("forms/one", b"\2" * 3000, "one", CHUNK),
        ),
        model=0,
        gathered=2,
        chunk_bytes=CHUNK,
        head=head,
        order=(Range(1, 0, 2 * CHUNK), Range(0, 1000, 99_000)),
        cuts=("first", "ünd"),
        segments=(ListedSegment(0.001, 5), ListedSegment(0.0, 0), ListedSegment(3599.0, 1 << 40)),
    )


RECORD: dict[str, Any] = json.loads(write_manifest(example()))


def read(record: Any) -> Manifest:
    """As somebody reads it who trusts just these bytes."""
    text = json.dumps(record).encode()
    return read_manifest(text, hashlib.sha256(text).hexdigest())


def changed(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    record = copy.deepcopy(RECORD)
    change(record)
    return record


def put(value: Any, *place: str | int) -> dict[str, Any]:
    """The example with another value at one place."""

    def change(record: Any) -> None:
        for step in place[:-1]:
            record = record[step]
        record[place[-1]] = value

    return changed(change)


def test_what_was_written_is_read_again_and_written_alike() -> None:
    manifest = example()
    text = write_manifest(manifest)
    again = read_manifest(text, hashlib.sha256(text).hexdigest())
    assert again == manifest
    assert write_manifest(again) == text
    assert write_manifest(example()) == text
    reordered = dict(reversed(RECORD.items()))
    assert write_manifest(read(reordered)) == text
    assert write_manifest(manifest._replace(cuts=("first",))) != text


def test_chunks_and_files_are_found_by_their_numbers() -> None:
    manifest = example()
    assert manifest.own == (0, 1)
    assert manifest.gathered_range == Range(2, 0, 1500)
    assert [manifest.chunk_count(number) for number in range(4)] == [4, 2, 1, 1]
    assert manifest.chunk_range(0, 3) == Range(0, 3 * CHUNK, 204_800 - 3 * CHUNK)
    assert manifest.chunk_range(1, 1) == Range(1, CHUNK, CHUNK)
    assert (
        manifest.chunk_digest(0, 1)
        == hashlib.sha256((bytes(range(256)) * 800)[CHUNK : 2 * CHUNK]).digest()
    )
    assert manifest.chunks_of(Range(0, 0, 0)) == range(0)
    assert manifest.chunks_of(Range(0, CHUNK - 1, 2)) == range(2)
    assert manifest.chunks_of(Range(0, CHUNK, CHUNK)) == range(1, 2)
    assert manifest.form_named("one") == 3
    assert manifest.form_named("two") is None
    assert manifest.form_named("") is None


def test_another_digest_is_refused_whatever_the_bytes_say() -> None:
    text = write_manifest(example())
    found = hashlib.sha256(text).hexdigest()
    with pytest.raises(InvalidModelError, match=f"SHA-256 {found}, expected {SHA256}"):
        read_manifest(text, SHA256)
    with pytest.raises(InvalidModelError, match=f"expected {found}"):
        read_manifest(text + b" ", found)


LONG = "a" * 201
NAMES = [
    *("", "/etc/passwd", "..", "../model", "a/../b", "a/..", ".", "./a", ".hidden", "a/.hidden"),
    *("a//b", "a/", "/", "a\\b", "a\0b", "a\nb", "\ud800", "a\u202eb", "a/" * 101 + "b", LONG),
]


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(InvalidModelError, match="is no name of a file below it"):
        read(put(name, "files", 0, "name"))


@pytest.mark.parametrize("name", ["a", "a/b/c", "a.b", "a..b", "ü", "a b", "-", LONG[:200]])
def test_a_plain_name_is_taken(name: str) -> None:
    assert read(put(name, "files", 0, "name")).files[0].name == name


MODEL = "'model.onnx'"
REFUSED: list[tuple[dict[str, Any], str]] = [
    (put("model.onnx", "files", 1, "name"), f"it names {MODEL} twice"),
    (put("data", "files", 0, "name"), "'data/weights.bin' lies in what is a file"),
    (put("gathered/a/b", "files", 0, "name"), "'gathered/a/b' lies in what is a file"),
    (
        put(MOST_FILE_BYTES + 1, "files", 0, "size"),
        f"{MODEL} is of {MOST_FILE_BYTES + 1} bytes",
    ),
    (put("00" * 96, "files", 0, "chunks"), f"{MODEL} of 204800 bytes has 96 bytes of digests"),
    (put("00" * 160, "files", 0, "chunks"), "has 160 bytes of digests"),
    (put("00" * 127, "files", 0, "chunks"), "has 127 bytes of digests"),
    (put(CHUNK * 4 + 1, "files", 0, "size"), "of 262145 bytes has 128 bytes of digests"),
    (put(CHUNK + 1, "chunk_bytes"), "its chunks are of 65537 bytes"),
    (put(3 * CHUNK, "chunk_bytes"), "its chunks are of 196608 bytes"),
    (put(LEAST_CHUNK_BYTES // 2, "chunk_bytes"), "its chunks are of 32768 bytes"),
    (put(MOST_CHUNK_BYTES * 2, "chunk_bytes"), "its chunks are of 33554432 bytes"),
    (put(0, "chunk_bytes"), "its chunks are of 0 bytes"),
    (put([0, 204_000, 1000], "head", 0), f"it has bytes behind the end of {MODEL}"),
    (put([1, 2 * CHUNK + 1, 0], "head", 1), "behind the end of 'data/weights.bin'"),
    (put([1, 1, 2 * CHUNK], "order", 0), "behind the end of 'data/weights.bin'"),
    (put([3, 0, 1], "order", 0), "it has bytes of a file 3"),  # a form
    (put([2, 0, 1], "order", 0), "it has bytes of a file 2"),  # the head itself
    (put([4, 0, 1], "order", 0), "it has bytes of a file 4"),
    (put([3, 0, 1000], "head", 0), "it has bytes of a file 3"),
    (put([0, 0, 999], "head", 0), "the head has 1499 bytes, and its file another number"),
    (put([], "head"), "the head has 0 bytes, and its file another number"),
    (put(4, "model"), "it names no model"),
    (put(3, "model"), "it names no model"),  # a form
    (put(2, "model"), "it names no model"),  # the head
    (put(3, "gathered"), "'gathered' has no digest of its content|no file with the model's head"),
    (put(4, "gathered"), "it names no file with the model's head"),
    (put([], "files"), "it names no model"),
    (put("0" * 31, "files", 0, "digest"), f"{MODEL} has no digest of its content"),
    (put("0" * 33, "files", 0, "digest"), f"{MODEL} has no digest of its content"),
    (put("A" * 32, "files", 0, "digest"), f"{MODEL} has no digest of its content"),
    (put("", "files", 1, "digest"), "'data/weights.bin' has no digest of its content"),
    (put("0" * 15, "files", 0, "sketch"), f"{MODEL} has no digest of its content"),
    (put("../../../x", "files", 0, "sketch"), f"{MODEL} has no digest of its content"),
    *(
        (put(form, "files", 3, "form"), "'forms/one' is a form of no name")
        for form in ("a/b", "..", ".a", "ü", "a\0b", "a" * 300, "a\nb")
    ),
    (put(2, "brisk_manifest"), "it is of format 2, expected 1"),
    (put(None, "brisk_manifest"), "it is of format None, expected 1"),
    (put([RECORD["files"][0]] * 300, "files"), "it names 300 files, expected 256 at most"),
    (put([3600.0, 1], "segments", 0), "a segment takes 3600.0 s"),
    (put([-0.5, 1], "segments", 0), "a segment takes -0.5 s"),
    (put([float("nan"), 1], "segments", 0), "a segment takes nan s"),
    (put([float("inf"), 1], "segments", 0), "a segment takes inf s"),
]


@pytest.mark.parametrize(("record", "message"), REFUSED, ids=[text for _, text in REFUSED])
def test_a_contradiction_is_refused_by_name(record: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidModelError, match=message):
        read(record)


NUMBERS: list[tuple[str | int, ...]] = [
    *(("model",), ("gathered",), ("chunk_bytes",), ("files", 0, "size"), ("segments", 0, 1)),
    *(("head", 0, place) for place in range(3)),
    *(("order", 0, place) for place in range(3)),
]


@pytest.mark.parametrize("value", [-1, True, False, 1.0, 1e300, "1", None, [1], {}])
@pytest.mark.parametrize("place", NUMBERS)
def test_a_number_is_a_whole_one(place: tuple[str | int, ...], value: Any) -> None:
    with pytest.raises(InvalidModelError, match="is no whole number"):
        read(put(value, *place))


@pytest.mark.parametrize("value", [1, None, ["a"], True])
@pytest.mark.parametrize("key", ["name", "form", "digest", "sketch"])
def test_a_text_is_one(key: str, value: Any) -> None:
    with pytest.raises(InvalidModelError, match="is no text"):
        read(put(value, "files", 0, key))


@pytest.mark.parametrize("value", [10**400, -(10**400)], ids=["much", "little"])
def test_seconds_that_no_float_holds_are_refused(value: int) -> None:
    with pytest.raises(InvalidModelError):
        read(put([value, 1], "segments", 0))


def test_two_forms_of_one_name_are_refused() -> None:
    """A copy has them by their names: one would be written over the other."""
    second = {**RECORD["files"][3], "name": "forms/two"}
    with pytest.raises(InvalidModelError):
        read(changed(lambda record: record["files"].append(second)))


@pytest.mark.parametrize("key", [*RECORD, *RECORD["files"][0]])
def test_what_is_missing_is_named(key: str) -> None:
    def without(record: dict[str, Any]) -> None:
        del (record if key in record else record["files"][0])[key]

    with pytest.raises(InvalidModelError, match=f"the manifest is none: KeyError\\('{key}'\\)"):
        read(changed(without))


def test_a_manifest_that_is_cut_off_is_refused() -> None:
    many = [list(Range(0, number, 1)) for number in range(1000)]
    text = write_manifest(read(put(many, "order")))
    assert len(text) > 97 * 100
    for length in range(0, len(text), 97):
        with pytest.raises(InvalidModelError, match="the manifest is none"):
            read_manifest(text[:length], hashlib.sha256(text[:length]).hexdigest())


@pytest.mark.parametrize(
    "text", [b"", b"\xff\xfe", b"\0" * 100, b"null", b"[]", b"1", b'"a"', b"[" * 100_000, b"{}"]
)
def test_what_is_no_manifest_at_all_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidModelError, match="the manifest is none"):
        read_manifest(text, hashlib.sha256(text).hexdigest())


def test_cuts_beyond_the_limit_are_left_out() -> None:
    cuts = [str(number) for number in range(MOST_CUTS + 10)]
    assert read(put(cuts, "cuts")).cuts == tuple(cuts[:MOST_CUTS])


def test_a_file_of_no_bytes_has_no_chunks() -> None:
    manifest = read(changed(_without_weights))
    assert manifest.chunk_count(1) == 0
    assert len(manifest.files[0].chunks) == 4 * DIGEST_BYTES


def _without_weights(record: dict[str, Any]) -> None:
    record["files"][1] |= {"size": 0, "chunks": ""}
    record["head"][1], record["order"] = [1, 0, 0], []


PLACES: list[tuple[str | int, ...]] = [
    *((key,) for key in RECORD),
    *(("files", number, key) for number in (0, 2, 3) for key in RECORD["files"][0]),
    *((key, 0) for key in ("files", "head", "order", "cuts", "segments")),
    *((key, 0, place) for key in ("head", "order") for place in range(3)),
    *(("segments", 0, place) for place in range(2)),
]
LEAVES = (st.none() | st.booleans() | st.integers() | st.floats() | st.text()) | st.sampled_from(
    [10**400, 1 << 63, "0" * 32, "00" * 32, "a/b", "..", CHUNK, 1, 2, 3]
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=700, deadline=None, database=None)
@given(st.sampled_from(PLACES), VALUES)
def test_any_value_at_any_place_is_refused_or_consistent(
    place: tuple[str | int, ...], value: Any
) -> None:
    try:
        manifest = read(put(value, *place))
    except InvalidModelError:
        return
    text = write_manifest(manifest)  # what was taken is in order: it is read as it is written
    assert read_manifest(text, hashlib.sha256(text).hexdigest()) == manifest


def remote(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


URL = "https://models.example/net/manifest.json"


def test_where_a_model_lies_is_read() -> None:
    assert read_remote(remote(url=URL, sha256=SHA256), "x") == Remote(URL, SHA256)
    assert read_remote(remote(sha256=SHA256.upper(), url=URL), "x") == Remote(URL, SHA256)


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"\xff", b"null", b"[]", b"1", b"[" * 100_000, b"{", remote()),
        *(remote(url=URL), remote(sha256=SHA256), remote(url=URL, sha256=SHA256, more=1)),
        *(remote(url=1, sha256=SHA256), remote(url=None, sha256=SHA256)),
        *(remote(url=URL, sha256=1), remote(url=URL, sha256=SHA256[:-1])),
        *(remote(url=URL, sha256=SHA256 + "0"), remote(url=URL, sha256="g" * 64)),
        *(remote(url="", sha256=SHA256), remote(url="models.example/a", sha256=SHA256)),
        *(remote(url=URL + "\n", sha256=SHA256), remote(url=URL + "\0", sha256=SHA256)),
        json.dumps([["url", URL], ["sha256", SHA256]]).encode(),
    ],
)
def test_what_names_no_model_is_refused_with_what_was_expected(text: bytes) -> None:
    expected = 'expected {"url": "https://…/manifest.json", "sha256": "<64 hexadecimal digits>"}'
    with pytest.raises(InvalidModelError) as refused:
        read_remote(text, "net/1/model.remote")
    assert str(refused.value).startswith("net/1/model.remote: ")
    assert str(refused.value).endswith(expected)
