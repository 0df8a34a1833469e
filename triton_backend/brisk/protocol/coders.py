"""Writes a coder of a record type from its annotations, when it is first used.

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
from collections.abc import Callable
from json.encoder import encode_basestring_ascii
from typing import Any, NoReturn, Union, get_args, get_origin

from brisk.errors import ProtocolError

MAX_INTEGER = 2**63 - 1

Encoder = Callable[[Any], str]
Decoder = Callable[[Any], Any]


class Coders:
    """Coders of named tuples, each written when it is first asked for. Their fields are integers,
    strings, booleans, such named tuples, tuples of one of these, or an optional plain one.

    An encoder gives JSON text in ASCII. A decoder takes what ``json`` made of it, and raises
    ProtocolError for anything else than exactly the fields. TypeError for other annotations. Any
    thread may ask: of two that do at once, each gets a coder that does the same.
    """

    def __init__(self) -> None:
        self._names: dict[str, Any] = {
            "ProtocolError": ProtocolError,
            "LEAST": -MAX_INTEGER,
            "GREATEST": MAX_INTEGER,
            "quote": encode_basestring_ascii,
            "refuse": _refuse,
            "refuse_integer": _refuse_integer,
        }

    def encoder(self, record: type) -> Encoder:
        return self._find("encode", record, _encoder_source)

    def decoder(self, record: type) -> Decoder:
        return self._find("decode", record, _decoder_source)

    def _find(
        self, verb: str, record: type, source: Callable[[str, dict[str, Any]], str]
    ) -> Callable[[Any], Any]:
        """The coder, after those of the records that it calls."""
        name = f"{verb}_{record.__name__}"
        if name not in self._names:
            annotations = dict(record.__annotations__)
            for annotation in annotations.values():
                for inner in (annotation, *get_args(annotation)):
                    if _is_record(inner):
                        self._find(verb, inner, source)
            self._names[record.__name__] = record
            # Only names and annotations of our own record classes are in this source.
            exec(source(record.__name__, annotations), self._names)
        coder: Callable[[Any], Any] = self._names[name]
        return coder


def _is_record(annotation: Any) -> bool:
    return isinstance(annotation, type) and hasattr(annotation, "_fields")


def _refuse(expected: str, value: Any) -> NoReturn:
    raise ProtocolError(f"expected {expected}, got {value!r:.80}")


def _refuse_integer(value: Any) -> NoReturn:
    _refuse("a 64-bit integer", value)


def _decoder_source(name: str, annotations: dict[str, Any]) -> str:
    variables = [f"v{position}" for position in range(len(annotations))]
    expected = f"expected the {len(variables)} fields of {name}"
    lines = [
        f"def decode_{name}(value):",
        f"    if type(value) is not list or len(value) != {len(variables)}:",
        f"        raise ProtocolError({expected!r})",
    ]
    if variables:
        lines.append(f"    {', '.join(variables)}, = value")
    for variable, annotation in zip(variables, annotations.values(), strict=True):
        lines += [f"    {line}" for line in _checks(variable, annotation)]
    lines.append(f"    return {name}({', '.join(variables)})")
    return "\n".join(lines)


def _encoder_source(name: str, annotations: dict[str, Any]) -> str:
    pairs = [_written(f"value.{field}", annotation) for field, annotation in annotations.items()]
    text = ",".join(pattern for pattern, _ in pairs)
    values = "".join(f"{expression}, " for _, expression in pairs)
    return f'def encode_{name}(value):\n    return "[{text}]" % ({values})'


def _checks(variable: str, annotation: Any) -> list[str]:
    """Lines that check ``variable`` and, where needed, make it what the annotation says."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if annotation is int:
        bad = f"type({variable}) is not int or not LEAST <= {variable} <= GREATEST"
        return [f"if {bad}: refuse_integer({variable})"]
    if annotation in (str, bool):
        kind = annotation.__name__
        return [f"if type({variable}) is not {kind}: refuse({kind!r}, {variable})"]
    if _is_record(annotation):
        return [f"{variable} = decode_{annotation.__name__}({variable})"]
    lines = [f"if type({variable}) is not list: refuse('a list', {variable})"]
    if origin is tuple and _is_record(arguments[0]):
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
    if _is_record(annotation):
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
