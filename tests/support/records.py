"""Records of the protocol as hypothesis makes them, and such as nearly are records."""

from __future__ import annotations

import random
from typing import Any, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from brisk.protocol.channel import MAX_INTEGER
from brisk.protocol.records import (
    RECORD_TYPES,
    Infer,
    InferForm,
    Region,
    Result,
)

INTEGERS = st.integers(-MAX_INTEGER, MAX_INTEGER)


TEXTS = st.text(max_size=20) | st.sampled_from(["", "\udc80", "ä\0", "模型", '"\\'])


def values_of(annotation: object) -> st.SearchStrategy[Any]:
    """Return a strategy of everything that a field of this annotation can hold."""
    plain = {int: INTEGERS, str: TEXTS, bool: st.booleans(), type(None): st.none()}
    if annotation in plain:
        return plain[annotation]  # type: ignore[index]
    if isinstance(annotation, type) and hasattr(annotation, "_fields"):
        return records_of(annotation)
    if get_origin(annotation) is tuple:
        return st.lists(values_of(get_args(annotation)[0]), max_size=3).map(tuple)
    return st.one_of([values_of(each) for each in get_args(annotation)])


def records_of(record: type) -> st.SearchStrategy[Any]:
    hints = get_type_hints(record)
    strategy = st.builds(record, *[values_of(hint) for hint in hints.values()])
    return strategy.map(with_regions) if record in (Infer, Result) else strategy


def with_regions(record: Infer | Result) -> Infer | Result:
    """Return the record with as many regions as its form has tensors."""
    form = record.form
    count = len(form.inputs if isinstance(form, InferForm) else form.outputs)
    return record._replace(regions=tuple(Region(i, 64 * i, 7) for i in range(count)))


RECORDS = st.one_of([records_of(record) for record in RECORD_TYPES])


_SPLICED = (
    *(b"[", b"]", b",", b"null", b"true", b"-1", b"1e999", b"NaN", b"Infinity", b"9" * 40),
    *(b'"\\ud800"', b"{}", b'{"a":1}', b"\\u0000", b"\xff", b"[" * 300, b'"' + b"x" * 5000 + b'"'),
)


def bend(data: bytes, chance: random.Random) -> bytes:
    """Return ``data`` after one to four small changes: a bit, a byte, a piece left out, doubled or
    put in."""
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
