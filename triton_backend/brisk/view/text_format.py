"""Reading ``config.pbtxt``: the text format of protocol buffers, without its schema.

As much as completing an entry needs: what fields say, and where the number of one stands. Whatever
is no such text, Triton itself refuses, in its own words.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, TypeAlias

Message: TypeAlias = "dict[str, list[Any]]"
"""The values of each field in their order: ``str`` (also of an enumeration or a truth value),
``int``, ``float`` or a message."""

_TOKEN = re.compile(
    r"(?P<nothing>\s+|\#[^\n]*)"
    r'|(?P<text>"(?:[^"\\\n]|\\.)*"' + r"|'(?:[^'\\\n]|\\.)*')"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<number>[-+]?(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[fF]?))"
    r"|(?P<mark>[-{}<>\[\]:,;])"
)
_ESCAPE = re.compile(rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|(.))", re.DOTALL)
_NAMED = {
    b"n": b"\n",
    b"t": b"\t",
    b"r": b"\r",
    b"a": b"\a",
    b"b": b"\b",
    b"f": b"\f",
    b"v": b"\v",
}
_CLOSING = {"{": "}", "<": ">"}
_DEEPEST = 64
"""Messages within messages; a configuration has about six."""


class UnreadableTextError(Exception):
    """The text is not of that format; the message says in which line."""


class Parsed(NamedTuple):
    """``places``: where in the text the value of an outermost field stands, the last one's."""

    message: Message
    places: dict[str, tuple[int, int]]


def parse(text: str) -> Parsed:
    """Raises UnreadableTextError."""
    reader = _Reader(text, _tokens(text))
    message = reader.message(None, 0)
    return Parsed(message, reader.places)


def quoted(text: str) -> str:
    """``text`` as a value."""
    data = text.encode("utf-8", "surrogateescape")
    return '"' + "".join(_shown(byte) for byte in data) + '"'


def _shown(byte: int) -> str:
    character = chr(byte)
    if character in '"\\' or not 32 <= byte < 127:
        return f"\\{byte:03o}"
    return character


def _tokens(text: str) -> list[re.Match[str]]:
    found, position = [], 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _unreadable(text, position)
        if match.lastgroup != "nothing":
            found.append(match)
        position = match.end()
    return found


def _unreadable(text: str, position: int) -> UnreadableTextError:
    return UnreadableTextError(f"line {text.count(chr(10), 0, position) + 1} cannot be read")


class _Reader:
    def __init__(self, text: str, tokens: list[re.Match[str]]) -> None:
        self.places: dict[str, tuple[int, int]] = {}
        self._text = text
        self._tokens = tokens
        self._next = 0

    def message(self, closing: str | None, depth: int) -> Message:
        """The fields up to ``closing``, or to the end of the text."""
        fields: Message = {}
        while True:
            token = self._take()
            if token is None and closing is None:
                return fields
            if token is not None and token.group() == closing and token.lastgroup == "mark":
                return fields
            if token is None or token.lastgroup != "word" or depth > _DEEPEST:
                raise self._error(token)
            values = fields.setdefault(token.group(), [])
            has_colon = self._skip(":")
            if self._skip("["):
                self._list(values, depth)
            else:
                values.append(self._value(depth, has_colon, token.group() if not depth else None))
            if not self._skip(","):
                self._skip(";")

    def _list(self, values: list[Any], depth: int) -> None:
        while not self._skip("]"):
            values.append(self._value(depth, True, None))
            if not self._skip(","):
                if not self._skip("]"):
                    raise self._error(self._peek())
                return

    def _value(self, depth: int, is_scalar: bool, outermost: str | None) -> Any:
        """``outermost``: the field whose value this is, of those whose places are noted."""
        token = self._take()
        if token is None:
            raise self._error(token)
        if token.group() in _CLOSING and token.lastgroup == "mark":
            return self.message(_CLOSING[token.group()], depth + 1)
        if not is_scalar:
            raise self._error(token)
        if outermost is not None:
            self.places[outermost] = (token.start(), token.end())
        if token.lastgroup == "text":
            return self._string(token)
        if token.lastgroup == "number":
            return _number(token.group())
        if token.lastgroup == "word":
            return token.group()
        following = self._take()  # a sign apart from its number, or from `inf`
        if (
            token.group() != "-"
            or following is None
            or following.lastgroup not in ("number", "word")
        ):
            raise self._error(token)
        if following.lastgroup == "word":
            return "-" + following.group()
        if outermost is not None:
            self.places[outermost] = (token.start(), following.end())
        return -_number(following.group())

    def _string(self, token: re.Match[str]) -> str:
        """Texts that follow each other are one."""
        parts = [token.group()]
        while (following := self._peek()) is not None and following.lastgroup == "text":
            parts.append(following.group())
            self._next += 1
        return "".join(map(_unescaped, parts))

    def _peek(self) -> re.Match[str] | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take(self) -> re.Match[str] | None:
        token = self._peek()
        self._next += token is not None
        return token

    def _skip(self, mark: str) -> bool:
        token = self._peek()
        found = token is not None and token.lastgroup == "mark" and token.group() == mark
        self._next += found
        return found

    def _error(self, token: re.Match[str] | None) -> UnreadableTextError:
        return _unreadable(self._text, len(self._text) if token is None else token.start())


def _number(text: str) -> int | float:
    sign = -1 if text.startswith("-") else 1
    digits = text.lstrip("+-")
    if digits.lower().startswith("0x"):
        return sign * int(digits, 16)
    if digits.isdecimal():
        is_octal = digits.startswith("0") and not set(digits) & {"8", "9"}
        return sign * int(digits, 8 if is_octal else 10)
    return sign * float(digits.rstrip("fF"))


def _unescaped(text: str) -> str:
    data = text[1:-1].encode("utf-8", "surrogateescape")
    return _ESCAPE.sub(_meant, data).decode("utf-8", "surrogateescape")


def _meant(match: re.Match[bytes]) -> bytes:
    octal, hexadecimal, other = match.groups()
    if octal:
        return bytes([int(octal, 8) & 0xFF])
    if hexadecimal:
        return bytes([int(hexadecimal, 16)])
    return _NAMED.get(other, other)
