"""Fields of a JSON object, read with messages that name the place and what was expected."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping
from typing import Any

# Why a workload did not run.


class WorkloadFailedError(Exception):
    """The workload could not be started, or a generator died; the text says why."""


class WorkloadFields:
    """One object of the document. ``place`` names it in messages: ``task 'vgg_rt', load``.

    Every method raises ValueError.
    """

    def __init__(self, value: Any, place: str, known: Collection[str]) -> None:
        if not isinstance(value, Mapping):
            raise ValueError(f"{place}: an object was expected, not {_shown(value)}")
        for name in value:
            if name not in known:
                near = difflib.get_close_matches(str(name), list(known), n=1)
                hint = f", did you mean '{near[0]}'?" if near else f"; it has {', '.join(known)}"
                raise ValueError(f"{place}: unknown field '{name}'{hint}")
        self._value = value
        self.place = place

    def has(self, name: str) -> bool:
        return name in self._value

    def any(self, name: str) -> Any:
        """The value as it is; it must be there."""
        if name not in self._value:
            raise ValueError(f"{self.place}: field '{name}' is missing")
        return self._value[name]

    def text(self, name: str, default: str | None = None) -> str:
        """A string that is not empty, unless it is the default."""
        if default is not None and name not in self._value:
            return default
        value = self.any(name)
        if not isinstance(value, str) or not value:
            raise self.wrong(name, "a name")
        return value

    def number(
        self, name: str, default: float | None = None, *, least: float = 0.0, above: bool = False
    ) -> float:
        """A finite number of at least ``least``, or greater where ``above``."""
        value = self._value.get(name, default) if default is not None else self.any(name)
        fits = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not fits or not math.isfinite(value) or value < least or (above and value <= least):
            raise self.wrong(name, f"a number {'above' if above else 'of at least'} {least:g}")
        return float(value)

    def count(self, name: str, default: int, *, least: int = 1) -> int:
        value = self._value.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.wrong(name, f"a whole number of at least {least}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self._value.get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def list(self, name: str) -> list[Any]:
        value = self.any(name)
        if not isinstance(value, list):
            raise self.wrong(name, "a list")
        return value

    def wrong(self, name: str, expected: str) -> ValueError:
        found = _shown(self._value.get(name))
        return ValueError(f"{self.place}: '{name}' must be {expected}, not {found}")


def _shown(value: Any) -> str:
    return f"{value!r:.60}"
