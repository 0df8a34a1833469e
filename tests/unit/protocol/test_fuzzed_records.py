"""100,000 messages and more that nearly are records: each is one, or a ProtocolError."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from brisk.errors import ProtocolError
from brisk.protocol.channel import MAX_RECORD_BYTES, decode_record, encode_record
from support.records import RECORDS, bend

BENT_PER_RECORD = 200
RECORD_COUNT = 520


def test_what_nearly_is_a_record_is_one_or_is_refused() -> None:
    seen = {"refused": 0, "taken": 0}
    longest = [0]

    @settings(max_examples=RECORD_COUNT, deadline=None, database=None)
    @given(RECORDS, st.randoms(use_true_random=False), st.integers(0, 2**32))
    def check(record: Any, _: random.Random, seed: int) -> None:
        chance = random.Random(seed)
        data = encode_record(record)
        for _ in range(BENT_PER_RECORD):
            try:
                taken = decode_record(bend(data, chance))
            except ProtocolError as error:
                longest[0] = max(longest[0], len(str(error)))
                seen["refused"] += 1
            else:
                assert decode_record(encode_record(taken)) == taken
                seen["taken"] += 1

    check()
    assert sum(seen.values()) >= 100_000
    assert longest[0] < 1000  # the message of an error quotes no more than a piece
    assert seen["taken"] > 1000
    assert seen["refused"] > 50_000


def test_deep_and_long_messages_are_refused_quickly() -> None:
    for message in (
        b"[" * MAX_RECORD_BYTES,
        b"[0," * (MAX_RECORD_BYTES // 3),
        b'[0,["' + b"x" * (MAX_RECORD_BYTES - 10) + b'"]]',
        b"[0,[" + b"9" * (MAX_RECORD_BYTES - 10) + b"]]",
        b'{"a":' * (MAX_RECORD_BYTES // 5),
    ):
        try:
            decode_record(message)
        except ProtocolError:
            continue
        raise AssertionError(f"{message[:20]!r} was taken for a record")
