"""Records to bytes and back: JSON arrays, ``[kind, [field, field, …]]``, checked field by field.

JSON because the standard library parses it in C, it can hold no code, and a capture of the
socket can be read. Coders are straight-line code, written once from the records' annotations
(``wire.coders``). Not at import: a stub needs few of them for a load. The two records of every
inference are quicker: ``wire.compact``.
"""

from __future__ import annotations

from brisk.errors import ProtocolError
from brisk.protocol import compact
from brisk.protocol.coders import Coders, Decoder, Encoder
from brisk.protocol.records import RECORD_TYPES, Infer, Record, Result

MAX_RECORD_BYTES = 192 * 1024
"""Longest record in bytes; fits the default send buffer of a Unix socket."""

_PLAIN_TYPES = [record for record in RECORD_TYPES if record not in (Infer, Result)]

_CODERS = Coders()


class _RecordHeads(dict[type, tuple[str, Encoder]]):
    """By record type: the text before its fields, and their encoder."""

    def __missing__(self, record: type) -> tuple[str, Encoder]:
        head = (f"[{_PLAIN_TYPES.index(record)},", _CODERS.encoder(record))
        self[record] = head
        return head


class _Decoders(dict[int, Decoder]):
    """By the record's kind, one that there is."""

    def __missing__(self, kind: int) -> Decoder:
        decoder = self[kind] = _CODERS.decoder(_PLAIN_TYPES[kind])
        return decoder


_HEADS, _DECODERS = _RecordHeads(), _Decoders()


def encode_record(record: Record) -> bytes:
    """The record's bytes; ProtocolError where they exceed MAX_RECORD_BYTES."""
    if type(record) is Infer:
        data = compact.encode_infer(record)
    elif type(record) is Result:
        data = compact.encode_result(record)
    else:
        head, encode = _HEADS[type(record)]
        data = (head + encode(record) + "]").encode("ascii")
    if len(data) > MAX_RECORD_BYTES:
        raise ProtocolError(
            f"a {type(record).__name__} record of {len(data)} bytes exceeds {MAX_RECORD_BYTES}"
        )
    return data


def decode_record(data: bytes | memoryview) -> Record:
    """The record in ``data``; ProtocolError for anything that is not exactly one record."""
    first = data[0] if data else None
    if first == compact.INFER:
        return compact.decode_infer(data)
    if first == compact.RESULT:
        return compact.decode_result(data)
    document = compact.parse_json(data)
    if type(document) is not list or len(document) != 2:
        raise ProtocolError("not a record: expected [kind, fields]")
    kind, body = document
    if type(kind) is not int or not 0 <= kind < len(_PLAIN_TYPES):
        raise ProtocolError(f"unknown record kind {kind!r:.80}")
    record: Record = _DECODERS[kind](body)
    return record
