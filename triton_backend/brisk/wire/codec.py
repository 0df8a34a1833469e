"""Records to bytes and back: JSON arrays, ``[kind, field, field, …]``, checked field by field.

JSON because the standard library parses it in C, it can hold no code, and a capture of the
socket can be read. A record of one input and one output takes about 300 bytes.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from operator import attrgetter
from typing import Any, Union, get_args, get_origin, get_type_hints

from brisk.errors import ProtocolError
from brisk.wire.records import RECORD_TYPES, Record

MAX_RECORD_BYTES = 192 * 1024
"""Longest record in bytes; fits the default send buffer of a Unix socket."""

MAX_INTEGER = 2**63 - 1

Decoder = Callable[[Any], Any]
Encoder = Callable[[Any], Any]


def _plain(value: Any) -> Any:
    return value


def _exactly(expected: type) -> Decoder:
    def decode(value: Any) -> Any:
        if type(value) is not expected:
            raise ProtocolError(f"expected {expected.__name__}, got {value!r:.80}")
        return value

    return decode


def _decode_integer(value: Any) -> int:
    if type(value) is not int or not -MAX_INTEGER <= value <= MAX_INTEGER:
        raise ProtocolError(f"expected a 64-bit integer, got {value!r:.80}")
    return value


def _sequence_of(item: Decoder) -> Decoder:
    def decode(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise ProtocolError(f"expected a list, got {value!r:.80}")
        return tuple([item(element) for element in value])

    return decode


def _optional(item: Decoder) -> Decoder:
    def decode(value: Any) -> Any:
        return None if value is None else item(value)

    return decode


def _structure(record: type) -> tuple[Encoder, Decoder]:
    """Encoder and decoder of one dataclass, without its kind."""
    hints = get_type_hints(record)
    names = [field.name for field in fields(record)]
    pairs = [_coders(hints[name]) for name in names]
    encoders = [pair[0] for pair in pairs]
    decoders = [pair[1] for pair in pairs]
    get = attrgetter(*names) if len(names) > 1 else lambda value: (getattr(value, names[0]),)
    count = len(names)
    nested = [(index, encoder) for index, encoder in enumerate(encoders) if encoder is not _plain]

    def encode(value: Any) -> list[Any]:
        values = list(get(value))
        for index, encoder in nested:
            values[index] = encoder(values[index])
        return values

    def decode(value: Any) -> Any:
        if type(value) is not list or len(value) != count:
            raise ProtocolError(f"expected the {count} fields of {record.__name__}")
        return record(
            *[decoder(element) for decoder, element in zip(decoders, value)]  # noqa: B905  # hot
        )

    return encode, decode


def _coders(annotation: Any) -> tuple[Encoder, Decoder]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is int:
        return _plain, _decode_integer
    if annotation in (str, bool):
        return _plain, _exactly(annotation)
    if origin is tuple:
        encode, decode = _coders(arguments[0])
        if encode is _plain:
            return _plain, _sequence_of(decode)
        return (lambda value: [encode(element) for element in value]), _sequence_of(decode)
    if origin in (Union, types.UnionType):
        (inner,) = [argument for argument in arguments if argument is not type(None)]
        encode, decode = _coders(inner)
        if encode is not _plain:
            raise TypeError("an optional field may hold only a plain type")
        return _plain, _optional(decode)
    if is_dataclass(annotation) and isinstance(annotation, type):
        return _structure(annotation)
    raise TypeError(f"a record cannot hold {annotation!r}")


_CODERS = {record: (kind, *_structure(record)) for kind, record in enumerate(RECORD_TYPES)}
_DECODERS = [_CODERS[record][2] for record in RECORD_TYPES]
_to_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode


def encode_record(record: Record) -> bytes:
    """The record's bytes; ProtocolError where they exceed MAX_RECORD_BYTES."""
    kind, encode, _ = _CODERS[type(record)]
    data = _to_json([kind, encode(record)]).encode("ascii")
    if len(data) > MAX_RECORD_BYTES:
        raise ProtocolError(
            f"a {type(record).__name__} record of {len(data)} bytes exceeds {MAX_RECORD_BYTES}"
        )
    return data


def decode_record(data: bytes) -> Record:
    """The record in ``data``; ProtocolError for anything that is not exactly one record."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"not a record: {error}") from error
    if type(document) is not list or len(document) != 2:
        raise ProtocolError("not a record: expected [kind, fields]")
    kind, body = document
    if type(kind) is not int or not 0 <= kind < len(_DECODERS):
        raise ProtocolError(f"unknown record kind {kind!r:.80}")
    return _DECODERS[kind](body)
