"""100,000 messages and more that nearly are records: each is one, or a ProtocolError."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from brisk.errors import ProtocolError
from brisk.protocol.codec import MAX_RECORD_BYTES, decode_record, encode_record
from unit.protocol.test_codec import RECORDS

BENT_PER_RECORD = 200
RECORD_COUNT = 520

_SPLICED = (
    *(b"[", b"]", b",", b"null", b"true", b"-1", b"1e999", b"NaN", b"Infinity", b"9" * 40),
    *(b'"\\ud800"', b"{}", b'{"a":1}', b"\\u0000", b"\xff", b"[" * 300, b'"' + b"x" * 5000 + b'"'),
)


def bend(data: bytes, chance: random.Random) -> bytes:
    """One to four small changes: a bit, a byte, a piece left out, doubled or put in."""
    bent = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(bent) + 1)
        kind = chance.randrange(6)
        if kind == 0 and place < len(bent):
            bent[place] ^= 1 << chance.randrange(8)
        elif kind == 1 and place < len(bent):
            bent[place] = chance.randrange(256)
        elif kind == 2:
            del bent[place : place + chance.randint(1, 12)]
        elif kind == 3:
            bent[place:place] = bent[place : place + chance.randint(1, 12)]
        elif kind == 4:
            del bent[place:]
        else:
            bent[place:place] = chance.choice(_SPLICED)
    return bytes(bent)


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
