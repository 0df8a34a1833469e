"""Removes layers whose results nobody reads."""

from __future__ import annotations

from brisk.graph.draft import Draft, reads_of
from brisk.graph.program import Layer


def remove_dead(draft: Draft) -> int:
    """Drop what leads to no output; returns how many layers went."""
    needed = set(draft.outputs)
    kept: list[Layer] = []
    for layer in reversed(draft.layers):
        if any(name in needed for name in layer.outputs):
            kept.append(layer)
            needed.update(reads_of(layer))
    removed = len(draft.layers) - len(kept)
    draft.layers = kept[::-1]
    return removed
