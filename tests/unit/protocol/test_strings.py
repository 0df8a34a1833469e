"""BYTES tensors: Triton's serialisation, and what damage to it does."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brisk.errors import InvalidRequestError
from brisk.protocol.datatypes import deserialize_strings, serialize_strings


@given(st.lists(st.binary(max_size=40), max_size=10))
def test_elements_come_back_as_they_were(elements: list[bytes]) -> None:
    data = serialize_strings(elements)
    assert deserialize_strings(data, len(elements)) == elements
    assert deserialize_strings(memoryview(data), len(elements)) == elements


@given(st.lists(st.binary(max_size=10), max_size=10))
def test_text_that_is_not_utf_8_comes_back_too(elements: list[bytes]) -> None:
    texts = [element.decode("utf-8", "surrogateescape") for element in elements]
    assert deserialize_strings(serialize_strings(texts), len(texts)) == elements


def test_the_layout_is_triton_s() -> None:
    assert serialize_strings([b"ab", "ä"]) == b"\x02\0\0\0ab\x02\0\0\0\xc3\xa4"


def test_no_elements_take_no_bytes() -> None:
    assert serialize_strings([]) == b""
    assert deserialize_strings(b"", 0) == []


@given(st.binary(max_size=60), st.integers(0, 6))
def test_any_bytes_are_elements_or_an_invalid_request(data: bytes, count: int) -> None:
    try:
        elements = deserialize_strings(data, count)
    except InvalidRequestError:
        return
    assert serialize_strings(elements) == data
    assert len(elements) == count


@given(st.lists(st.binary(max_size=10), min_size=1, max_size=5), st.data())
def test_no_cut_goes_unnoticed(elements: list[bytes], data: st.DataObject) -> None:
    whole = serialize_strings(elements)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(InvalidRequestError):
        deserialize_strings(whole[:cut], len(elements))


@pytest.mark.parametrize(
    ("data", "count", "reason"),
    [
        (b"\1\0\0", 1, "ends after 0 of 1 elements"),
        (serialize_strings([b"a"]), 2, "ends after 1 of 2 elements"),
        (struct.pack("<I", 2**32 - 1) + b"abc", 1, "element 0 .* claims 4294967295 bytes, 3 are"),
        (serialize_strings([b"a", b"bc"]), 1, "1 elements has 6 bytes too many"),
        (b"", 2**62, "ends after 0 of"),
    ],
)
def test_damage_is_named(data: bytes, count: int, reason: str) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        deserialize_strings(data, count)
