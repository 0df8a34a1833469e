"""Sets of chunks, where they lie, and in which order they are wanted."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brisk.copies.manifest import Manifest, Range
from brisk.errors import ProtocolError
from brisk.sourcing.policies.choosing import least_chunks, next_run, run_chunks
from brisk.sourcing.policies.stretches import (
    Layout,
    Stretch,
    bits_of,
    bits_of_all,
    first_stretch,
    pack,
    stretches_of,
    unpack,
)
from brisk.sourcing.policies.wants import merged, order
from support.remote.published import listed

CHUNK = 1 << 16
SETS = st.integers(0, (1 << 80) - 1)


def manifest(order_: tuple[Range, ...] = ()) -> Manifest:
    """Chunks 0 to 4: the model; 5, 6: weights; none: an empty file; 7: the head; 8 to 10 and 11,
    12: forms. The last chunk of each is shorter."""
    contents = {"model": 4 * CHUNK + 100, "weights": CHUNK + 200, "empty": 0, "gathered": 1000}
    files = [listed(name, bytes(size), chunk_bytes=CHUNK) for name, size in contents.items()]
    files.append(listed("forms/a", bytes(2 * CHUNK + 7), "a", CHUNK))
    files.append(listed("forms/b", bytes(CHUNK + 8), "b", CHUNK))
    return Manifest(tuple(files), 0, 3, CHUNK, (Range(0, 0, 1000),), order_, (), ())


BACKWARDS = tuple(Range(0, chunk * CHUNK, CHUNK) for chunk in (3, 2, 1))
LAYOUT = Layout(manifest(BACKWARDS))


def chunks(stretches: tuple[Stretch, ...]) -> list[int]:
    return [chunk for each in stretches for chunk in range(*each)]


def members(bits: int) -> list[int]:
    return [chunk for chunk in range(bits.bit_length()) if bits >> chunk & 1]


# Sets.


def test_a_stretch_is_the_set_of_its_chunks() -> None:
    assert bits_of(Stretch(2, 5)) == 0b11100
    assert bits_of(Stretch(2, 2)) == 0
    assert bits_of(Stretch(5, 2)) == 0
    assert bits_of_all([Stretch(0, 2), Stretch(1, 3), Stretch(5, 6)]) == 0b100111
    assert bits_of_all([]) == 0


@given(SETS)
@settings(max_examples=200, deadline=None, database=None)
def test_a_set_is_as_few_stretches_as_can_be(bits: int) -> None:
    stretches = list(stretches_of(bits))
    assert bits_of_all(stretches) == bits
    assert all(each.chunks > 0 for each in stretches)
    assert all(one.end < two.start for one, two in itertools.pairwise(stretches))


@given(SETS, st.integers(0, 90), st.integers(-3, 90), st.integers(1, 10))
@settings(max_examples=300, deadline=None, database=None)
def test_the_first_chunks_side_by_side_are_found(
    bits: int, start: int, length: int, most: int
) -> None:
    first = first_stretch(bits, Stretch(start, start + length), most)
    inside = [chunk for chunk in members(bits) if start <= chunk < start + length]
    if not inside:
        assert first is None
        return
    end = inside[0]
    while end in inside and end - inside[0] < most:
        end += 1
    assert first == (inside[0], end)


@given(SETS, st.integers(80, 100))
@settings(max_examples=200, deadline=None, database=None)
def test_a_set_is_told_as_text_and_read_again(bits: int, count: int) -> None:
    assert unpack(pack(bits, count), count) == bits


def test_a_set_of_no_chunks_is_an_empty_text() -> None:
    assert pack(0, 0) == ""
    assert unpack("", 0) == 0


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 8),
        ("AA==", 0),
        ("AA==", 9),  # one byte, two are needed
        ("AAA=", 8),
        (pack(1 << 8, 9), 8),
        ("IA==", 5),  # chunk 5 of five
        ("A", 8),
        ("!!!!", 8),
        ("AA==\n", 8),
        ("ÄÄÄÄ", 24),
        ("\ud800", 8),
        ("A" * 1_000_000, 8),
    ],
)
def test_what_is_no_set_of_so_many_chunks_is_refused(text: str, count: int) -> None:
    with pytest.raises(ProtocolError):
        unpack(text, count)


# Where chunks lie.


def test_chunks_are_numbered_through_all_files() -> None:
    assert LAYOUT.count == 13
    assert [LAYOUT.file(number) for number in range(6)] == [
        *((0, 5), (5, 7), (7, 7), (7, 8), (8, 11), (11, 13))
    ]
    assert [LAYOUT.place(index) for index in (0, 4, 5, 7, 8, 12)] == [
        *((0, 0), (0, 4), (1, 0), (3, 0), (4, 0), (5, 1))
    ]
    assert members(LAYOUT.own) == [0, 1, 2, 3, 4, 5, 6]


def test_a_chunk_is_a_range_of_its_file() -> None:
    assert LAYOUT.range_of(1) == Range(0, CHUNK, CHUNK)
    assert LAYOUT.range_of(4) == Range(0, 4 * CHUNK, 100)
    assert LAYOUT.range_of(7) == Range(3, 0, 1000)
    assert LAYOUT.bytes_of(Stretch(3, 5)) == Range(0, 3 * CHUNK, CHUNK + 100)
    assert LAYOUT.bytes_of(Stretch(5, 6)) == Range(1, 0, CHUNK)


def test_bytes_lie_in_chunks() -> None:
    assert LAYOUT.stretch(Range(1, 0, 1)) == (5, 6)
    assert LAYOUT.stretch(Range(1, CHUNK - 1, 2)) == (5, 7)
    assert LAYOUT.stretch(Range(4, CHUNK, CHUNK + 7)) == (9, 11)
    assert LAYOUT.stretch(Range(4, CHUNK, 0)).chunks == 0


@given(st.integers(0, (1 << LAYOUT.count) - 1))
@settings(max_examples=200, deadline=None, database=None)
def test_the_size_of_a_set_is_that_of_its_chunks(bits: int) -> None:
    assert LAYOUT.size_of(bits) == sum(LAYOUT.range_of(index).size for index in members(bits))


# What is wanted.


def test_a_start_from_the_models_file_wants_the_head_then_weights_in_their_order() -> None:
    assert chunks(order(LAYOUT, (), ())) == [7, 3, 2, 1, 0, 4, 5, 6]


def test_what_somebody_awaits_comes_before_all_but_the_head() -> None:
    awaited = [Range(1, CHUNK, 1), Range(0, 2 * CHUNK - 1, 2)]
    assert chunks(order(LAYOUT, awaited, ())) == [7, 6, 1, 2, 3, 0, 4, 5]


def test_a_start_from_a_form_wants_its_outline_and_the_form_before_the_weights() -> None:
    outline = [Range(4, 0, 96), Range(4, 2 * CHUNK, 7)]
    assert chunks(order(LAYOUT, (), [4], outline)) == [7, 8, 10, 9, 0, 1, 2, 3, 4, 5, 6]
    awaited = [Range(0, 0, 1)]
    assert chunks(order(LAYOUT, awaited, [4], outline)) == [7, 0, 8, 10, 9, 1, 2, 3, 4, 5, 6]
    assert chunks(order(LAYOUT, (), [5, 4])) == [7, 11, 12, 8, 9, 10, 0, 1, 2, 3, 4, 5, 6]


def test_behind_what_was_awaited_it_goes_round() -> None:
    assert chunks(order(LAYOUT, (), (), behind=2)) == [7, 2, 1, 3, 4, 5, 6, 0]
    assert chunks(order(LAYOUT, (), [4], behind=3)) == [7, 8, 9, 10, 3, 4, 5, 6, 0, 1, 2]
    assert chunks(order(LAYOUT, (), [4], behind=5)) == [7, 8, 9, 10, 5, 6, 0, 1, 2, 3, 4]


def test_it_goes_round_in_the_middle_of_a_range_of_weights() -> None:
    layout = Layout(manifest((Range(1, 0, CHUNK), Range(0, 0, 4 * CHUNK))))
    assert chunks(order(layout, (), (), behind=2)) == [7, 2, 3, 5, 0, 1, 4, 6]


def test_a_place_that_is_in_nothing_planned_changes_nothing() -> None:
    assert order(LAYOUT, (), (), behind=12) == order(LAYOUT, (), ())


PARTS = st.builds(
    lambda file, start, size: Range(file, start, min(size, LAYOUT.manifest.files[file].size)),
    st.sampled_from([0, 1, 4, 5]),
    st.just(0),
    st.integers(0, 6 * CHUNK),
)


@given(st.lists(PARTS, max_size=5), st.sampled_from([[], [4], [5, 4]]), st.integers(0, 12))
@settings(max_examples=300, deadline=None, database=None)
def test_all_that_is_wanted_comes_once(
    awaited: list[Range], forms: list[int], behind: int
) -> None:
    stretches = order(LAYOUT, awaited, forms, behind=behind)
    indices = chunks(stretches)
    assert len(indices) == len(set(indices))
    files = (*LAYOUT.manifest.own, LAYOUT.manifest.gathered, *forms)
    wanted = bits_of_all([*map(LAYOUT.file, files), *map(LAYOUT.stretch, awaited)])
    assert bits_of_all(stretches) == wanted
    assert indices[0] == 7
    if first := next((each for each in awaited if each.size), None):
        assert indices[1] == LAYOUT.stretch(first).start


def test_what_is_told_is_what_is_missing_in_order_with_neighbours_joined() -> None:
    stretches = [Stretch(7, 8), Stretch(3, 5), Stretch(5, 7), Stretch(0, 3)]
    everything = (1 << 8) - 1
    assert merged(stretches, everything, 9) == ((7, 8), (3, 7), (0, 3))
    assert merged(stretches, everything & ~(1 << 5), 9) == ((7, 8), (3, 5), (6, 7), (0, 3))
    assert merged(stretches, everything, 2) == ((7, 8), (3, 7))
    assert merged(stretches, everything, 1) == ((7, 8),)
    assert merged(stretches, 0, 9) == ()
    assert merged([], everything, 9) == ()


# What is asked for next.


@pytest.mark.parametrize(
    ("stretches", "allowed", "most", "least", "expected"),
    [
        ([(0, 10)], 0b1111111111, 100, 4, (0, 10)),
        ([(0, 10)], 0b1111111111, 6, 4, (0, 6)),
        ([(0, 10)], 0b1111100000, 100, 4, (5, 10)),
        ([(5, 10), (0, 5)], 0b1111111111, 100, 4, (5, 10)),
        ([(5, 10), (0, 5)], 0b0000011111, 100, 4, (0, 5)),
        ([(8, 10), (0, 5)], 0b111111111111, 100, 4, (8, 12)),  # a few behind it come along
        ([(8, 10), (0, 5)], 0b001111111111, 100, 4, (8, 10)),  # but none that is not allowed
        ([(8, 10), (0, 5)], 0b1111111111111111, 100, 1, (8, 10)),
        ([(0, 10)], 0b1101, 100, 4, (0, 1)),
        ([(0, 10)], 0, 100, 4, None),
        ([], 0b1111, 100, 4, None),
        ([(0, 4)], 0b11110000, 100, 4, None),
    ],
)
def test_the_next_run_is_the_first_that_is_wanted_and_allowed(
    stretches: list[tuple[int, int]],
    allowed: int,
    most: int,
    least: int,
    expected: tuple[int, int] | None,
) -> None:
    assert next_run([Stretch(*each) for each in stretches], allowed, most, least) == expected


def test_so_much_is_asked_for_as_comes_in_a_second_and_never_too_little() -> None:
    assert run_chunks(100 * CHUNK, CHUNK) == 100
    assert run_chunks(0.0, CHUNK) == 4


def test_no_less_is_asked_for_than_comes_while_a_request_is_answered() -> None:
    """One row of a table from a host beside, or with its neighbours from a far one."""
    assert least_chunks(100 * CHUNK, CHUNK, 0.001) == 1
    assert least_chunks(100 * CHUNK, CHUNK, 0.05) == 5
    assert least_chunks(0.0, CHUNK, 0.05) == 1
