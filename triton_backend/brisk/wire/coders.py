"""Writes a coder of each record type from its annotations, as ``dataclasses`` does its methods.

What a decoder of ``Region`` looks like::

    def decode_Region(value):
        if type(value) is not list or len(value) != 3:
            raise ProtocolError("expected the 3 fields of Region")
        v0, v1, v2 = value
        if type(v0) is not int or not LEAST <= v0 <= GREATEST: refuse_integer(v0)
        …
        return Region(v0, v1, v2)

and an encoder::

    def encode_Region(value):
        return "[%s,%s,%s]" % (value.slab, value.offset, value.size)
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from json.encoder import encode_basestring_ascii
from typing import Any, NoReturn, Union, get_args, get_origin, get_type_hints

from brisk.errors import ProtocolError

MAX_INTEGER = 2**63 - 1

Encoder = Callable[[Any], str]
Decoder = Callable[[Any], Any]


def make_coders(records: Sequence[type]) -> tuple[list[Encoder], list[Decoder]]:
    """Encoders and decoders of dataclasses whose fields are integers, strings, booleans, such
    dataclasses, tuples of one of these, or an optional plain one.

    An encoder gives JSON text in ASCII. A decoder takes what ``json`` made of it, and raises
    ProtocolError for anything else than exactly the fields. TypeError for other annotations.
    """
    names: dict[str, Any] = {
        "ProtocolError": ProtocolError,
        "LEAST": -MAX_INTEGER,
        "GREATEST": MAX_INTEGER,
        "quote": encode_basestring_ascii,
        "refuse": _refuse,
        "refuse_integer": _refuse_integer,
    }
    for record in records:
        _define(record, names)
    return (
        [names[f"encode_{record.__name__}"] for record in records],
        [names[f"decode_{record.__name__}"] for record in records],
    )


def _refuse(expected: str, value: Any) -> NoReturn:
    raise ProtocolError(f"expected {expected}, got {value!r:.80}")


def _refuse_integer(value: Any) -> NoReturn:
    _refuse("a 64-bit integer", value)


def _define(record: type, names: dict[str, Any]) -> None:
    """Add both coders of ``record`` to ``names``, and first those of the records in it."""
    name = record.__name__
    if name in names:
        return
    names[name] = record
    hints = get_type_hints(record)
    annotations = {field.name: hints[field.name] for field in fields(record)}
    for annotation in annotations.values():
        for inner in (annotation, *get_args(annotation)):
            if is_dataclass(inner) and isinstance(inner, type):
                _define(inner, names)
    variables = [f"v{position}" for position in range(len(annotations))]
    expected = f"expected the {len(variables)} fields of {name}"
    decoder = [
        f"def decode_{name}(value):",
        f"    if type(value) is not list or len(value) != {len(variables)}:",
        f"        raise ProtocolError({expected!r})",
    ]
    if variables:
        decoder.append(f"    {', '.join(variables)}, = value")
    for variable, annotation in zip(variables, annotations.values(), strict=True):
        decoder += [f"    {line}" for line in _checks(variable, annotation)]
    decoder.append(f"    return {name}({', '.join(variables)})")
    pairs = [_written(f"value.{field}", annotation) for field, annotation in annotations.items()]
    text = ",".join(pattern for pattern, _ in pairs)
    encoder = [
        f"def encode_{name}(value):",
        f'    return "[{text}]" % ({"".join(f"{expression}, " for _, expression in pairs)})',
    ]
    # Only names and annotations of our own record classes are in this source.
    exec("\n".join([*decoder, *encoder]), names)


def _checks(variable: str, annotation: Any) -> list[str]:
    """Lines that check ``variable`` and, where needed, make it what the annotation says."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is int:
        bad = f"type({variable}) is not int or not LEAST <= {variable} <= GREATEST"
        return [f"if {bad}: refuse_integer({variable})"]
    if annotation in (str, bool):
        kind = annotation.__name__
        return [f"if type({variable}) is not {kind}: refuse({kind!r}, {variable})"]
    if is_dataclass(annotation) and isinstance(annotation, type):
        return [f"{variable} = decode_{annotation.__name__}({variable})"]
    lines = [f"if type({variable}) is not list: refuse('a list', {variable})"]
    if origin is tuple and is_dataclass(arguments[0]) and isinstance(arguments[0], type):
        element = f"decode_{arguments[0].__name__}(element)"
        return [*lines, f"{variable} = tuple([{element} for element in {variable}])"]
    if origin is tuple:
        lines.append(f"for element in {variable}:")
        lines += [f"    {line}" for line in _checks("element", arguments[0])]
        return [*lines, f"{variable} = tuple({variable})"]
    inner = _optional(annotation)
    return [f"if {variable} is not None:", *(f"    {line}" for line in _checks(variable, inner))]


def _written(expression: str, annotation: Any) -> tuple[str, str]:
    """A ``%`` pattern for a field, and the expression that fills it."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is int:
        return "%s", expression
    if annotation is str:
        return "%s", f"quote({expression})"
    if annotation is bool:
        return "%s", f"'true' if {expression} else 'false'"
    if is_dataclass(annotation) and isinstance(annotation, type):
        return "%s", f"encode_{annotation.__name__}({expression})"
    if origin is tuple:
        pattern, element = _written("element", arguments[0])
        return "[%s]", f"','.join([{pattern!r} % ({element},) for element in {expression}])"
    pattern, inner = _written(expression, _optional(annotation))
    return "%s", f"'null' if {expression} is None else {pattern!r} % ({inner},)"


def _optional(annotation: Any) -> Any:
    """The plain type of an optional field; TypeError for any other annotation."""
    if get_origin(annotation) in (Union, types.UnionType):
        inner = [argument for argument in get_args(annotation) if argument is not type(None)]
        if len(inner) == 1 and inner[0] in (int, str, bool):
            return inner[0]
    raise TypeError(f"a record cannot hold {annotation!r}")
