"""Reads JSON strictly: every problem is noted with its place, and none ends the reading."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from brisk.errors import InvalidModelError

MAX_PROBLEMS = 20


class Problems:
    def __init__(self, file: str) -> None:
        self._file = file
        self._found: list[str] = []

    def note(self, place: str, text: str) -> None:
        self._found.append(f"{place}: {text}" if place else text)

    def report(self) -> None:
        """Raise InvalidModelError with all problems, if there are any."""
        if self._found:
            remaining = len(self._found) - MAX_PROBLEMS
            more = f"; and {remaining} more" if remaining > 0 else ""
            raise InvalidModelError(f"{self._file}: {'; '.join(self._found[:MAX_PROBLEMS])}{more}")


def hint(name: str, names: Iterable[str]) -> str:
    """Return ``, did you mean 'x'?`` if a name is similar; else all names."""
    import difflib

    names = sorted(names)
    if nearest := difflib.get_close_matches(name, names, n=1, cutoff=0.5):
        return f", did you mean '{nearest[0]}'?"
    return f"; there are {', '.join(names)}" if names else "; there is none"


class Fields:
    """One JSON object. Each known field is read by name; ``finish`` notes the others."""

    def __init__(self, value: Any, place: str, problems: Problems) -> None:
        self._is_object = isinstance(value, dict)
        self._values: dict[str, Any] = value if self._is_object else {}
        self._asked: set[str] = set()
        self._place = place
        self._problems = problems
        if not self._is_object:
            self.note(f"expected an object, not {shown(value)}")

    def note(self, text: str) -> None:
        self._problems.note(self._place, text)

    def take(self, name: str, default: Any = None) -> Any:
        self._asked.add(name)
        return self._values.get(name, default)

    def objects(self, name: str) -> dict[str, Any]:
        """Return an object with at least one field; empty, with a problem, if there is none."""
        value = self.take(name)
        if isinstance(value, dict) and value:
            return value
        self._wrong(name, "an object with at least one field", value)
        return {}

    def text(self, name: str, default: str | None = None, among: Iterable[str] = ()) -> str:
        value = self.take(name, default)
        if not isinstance(value, str) or not value:
            self._wrong(name, "a text", value)
            return ""
        if among and value not in among:
            self.note(f"{name} is '{value:.60}'{hint(value, among)}")
        return value

    def number(self, name: str, most: float) -> float:
        """Return a number above 0, up to ``most``."""
        value = self.take(name)
        if is_number(value) and 0 < value <= most:
            return float(value)
        self._wrong(name, f"a number above 0 and up to {most:g}", value)
        return most

    def finish(self) -> None:
        """Note as unknown every field that was not read."""
        for name in self._values:
            if name not in self._asked:
                self.note(f"unknown field '{name:.60}'{hint(name, self._asked)}")

    def _wrong(self, name: str, expected: str, value: Any) -> None:
        if self._is_object:
            actual = f"not {shown(value)}" if name in self._values else "but it is missing"
            self.note(f"{name} must be {expected}, {actual}")


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def shown(value: Any) -> str:
    return json.dumps(value, default=str)[:60]


def parse_object(text: str, problems: Problems) -> Any:
    """Return the value of the JSON ``text``; note duplicate fields. Raises InvalidModelError if it
    is not JSON."""

    def unique(pairs: list[tuple[str, Any]]) -> Mapping[str, Any]:
        names = [name for name, _ in pairs]
        for name in dict.fromkeys(names):
            if names.count(name) > 1:
                problems.note("", f"field '{name:.60}' is there {names.count(name)} times")
        return dict(pairs)

    def refuse(constant: str) -> None:
        problems.note("", f"{constant} is no number")

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        problems.note("", f"is not JSON: {error}")
        problems.report()
        raise AssertionError("a problem was noted") from error
