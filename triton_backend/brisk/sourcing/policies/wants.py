"""The order in which the chunks of a copy are fetched: pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from brisk.copies.manifest import Range
from brisk.sourcing.policies.stretches import Layout, Stretch, bits_of, stretches_of


def order(
    layout: Layout,
    awaited: Sequence[Range],
    forms: Sequence[int],
    outline: Sequence[Range] = (),
    behind: int = 0,
) -> tuple[Stretch, ...]:
    """Return every wanted chunk once, in the order in which to fetch them.

    First the head, which describes the model; then the ``awaited`` bytes; then the ``outline``
    of the prepared ``forms`` and the forms, or, without a form, the weights in the order in which
    a start computes with them; then the rest of the model's own files. Weights and rest begin with
    the chunk ``behind`` what was awaited last, and wrap around: hosts that first await different
    parts then complete their copies from each other in a ring.
    """
    manifest = layout.manifest
    head = layout.file(manifest.gathered)
    first = [layout.stretch(part) for part in (*awaited, *outline)]
    if forms:
        planned = list(map(layout.file, forms))
    else:
        planned = _turned([layout.stretch(part) for part in manifest.order], behind)
    rest = _turned([layout.file(number) for number in manifest.own], behind)
    return tuple(_once((head, *first, *planned, *rest)))


def _turned(stretches: Sequence[Stretch], behind: int) -> list[Stretch]:
    """Return the stretches rotated: from chunk ``behind`` on, then those before it."""
    for number, stretch in enumerate(stretches):
        if stretch.start <= behind < stretch.end:
            here, rest = Stretch(behind, stretch.end), Stretch(stretch.start, behind)
            return [here, *stretches[number + 1 :], *stretches[:number], rest]
    return list(stretches)


def _once(stretches: Iterable[Stretch]) -> Iterable[Stretch]:
    yielded = 0
    for stretch in stretches:
        new = bits_of(stretch) & ~yielded
        yielded |= new
        yield from stretches_of(new)


def merged(stretches: Iterable[Stretch], missing: int, most: int) -> tuple[Stretch, ...]:
    """Return the first ``most`` stretches of the missing chunks, adjacent ones joined. A host
    reports them as what it fetches next."""
    joined: list[Stretch] = []
    for stretch in stretches:
        inside = bits_of(stretch) & missing
        for part in stretches_of(inside):
            if joined and joined[-1].end == part.start:
                joined[-1] = Stretch(joined[-1].start, part.end)
            elif len(joined) == most:
                return tuple(joined)
            else:
                joined.append(part)
    return tuple(joined)
