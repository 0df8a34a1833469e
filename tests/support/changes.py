"""One value of a JSON document changed, for every value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def near(value: int, size: int) -> list[int]:
    """0, and what lies 1, ``size``, 2^31 and 2^62 to either side; without ``value`` itself."""
    far = [sign * step for step in (1, size, 1 << 31, 1 << 62) for sign in (1, -1)]
    return [
        other for other in dict.fromkeys([0, *(value + each for each in far)]) if other != value
    ]


def leaves(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every value that is no dictionary or list, with the keys that lead to it."""
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    else:
        yield way, value
    for key, inner in items:
        yield from leaves(inner, (*way, key))


def others_of(value: Any, size: int) -> list[Any]:
    if type(value) is int:
        return near(value, size)
    return [0] if value is None else [None]


def put(root: Any, way: tuple[Any, ...], value: Any) -> None:
    for key in way[:-1]:
        root = root[key]
    root[way[-1]] = value
