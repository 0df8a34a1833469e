"""The graph optimisations, one file each, in the order in which they help one another."""

from __future__ import annotations

from brisk.graph.draft import Draft


def optimise(draft: Draft) -> None:
    """Rewrite ``draft`` in place; its inputs, outputs and their values stay the same."""
