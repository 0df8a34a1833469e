"""Arithmetic on sizes that may be names: products and quotients in one spelling.

A product is spelled ``12*batch``: its number first, its names sorted. Everything else that is
not a number is one opaque name in parentheses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from hashlib import blake2s
from math import prod

from brisk.graph.program import Dimension

_LONGEST_NAME = 48


def _factors(size: int | str) -> tuple[int, Counter[str]]:
    if isinstance(size, int):
        return size, Counter()
    number, names = 1, Counter[str]()
    for part in size.split("*"):
        if part.isdigit():
            number *= int(part)
        else:
            names[part] += 1
    return number, names


def _spell(number: int, names: Counter[str]) -> int | str:
    if not names or number == 0:
        return number
    atoms = sorted(names.elements())
    return "*".join(atoms if number == 1 else [str(number), *atoms])


def _all_known(sizes: Iterable[Dimension]) -> list[int | str] | None:
    every = list(sizes)
    known = [size for size in every if size is not None]
    return known if len(known) == len(every) else None


def product(sizes: Iterable[Dimension]) -> Dimension:
    """The product of ``sizes``; None where one is unknown."""
    known = _all_known(sizes)
    if known is None:
        return None
    pairs = [_factors(size) for size in known]
    names: Counter[str] = Counter()
    for _, atoms in pairs:
        names.update(atoms)
    return _spell(prod(number for number, _ in pairs), names)


def quotient(total: Dimension, divisor: Dimension) -> Dimension:
    """``total / divisor`` where it is surely whole; None otherwise."""
    if total is None or divisor is None:
        return None
    number, names = _factors(total)
    by, without = _factors(divisor)
    if by == 0 or number % by or without - names:
        return None
    return _spell(number // by, names - without)


def shifted(size: Dimension, offset: int) -> Dimension:
    if isinstance(size, int):
        return size + offset
    if size is None or offset == 0:
        return size
    return _opaque(f"({_atom(size)}{offset:+d})")


def windows(size: Dimension, offset: int, stride: int, up: bool = False) -> Dimension:
    """``floor((size + offset) / stride) + 1``, or ``ceil``: how often a window fits."""
    if stride == 1:
        return shifted(size, offset + 1)
    if size is None:
        return None
    if isinstance(size, int):
        steps = size + offset
        return (-(-steps // stride) if up else steps // stride) + 1
    name = "ceil" if up else "floor"
    return _opaque(f"({name}({_atom(size)}{offset:+d},{stride})+1)")


def total(sizes: Iterable[Dimension]) -> Dimension:
    """The sum of ``sizes``."""
    known = _all_known(sizes)
    if known is None:
        return None
    numbers = sum(size for size in known if isinstance(size, int))
    names = sorted(_atom(size) for size in known if isinstance(size, str))
    if not names:
        return numbers
    if len(names) == 1 and numbers == 0:
        return next(size for size in known if isinstance(size, str))
    return _opaque("(" + "+".join([*names, *([str(numbers)] if numbers else [])]) + ")")


def broadcast(sizes: Iterable[Dimension]) -> Dimension:
    """The common size of aligned axes; None where it depends on the request."""
    wide = {size for size in sizes if size != 1}
    if not wide:
        return 1
    if len(wide) == 1:
        return wide.pop()
    numbers = {size for size in wide if isinstance(size, int)}
    return numbers.pop() if len(numbers) == 1 else None


def _opaque(name: str) -> str:
    """``name``, or a digest of it where names built upon it would grow without bound."""
    if len(name) <= _LONGEST_NAME:
        return name
    return f"size-{blake2s(name.encode(), digest_size=6).hexdigest()}"


def _atom(size: int | str) -> str:
    """A spelling without ``*``, which would read as a product."""
    return str(size).replace("*", "·")
