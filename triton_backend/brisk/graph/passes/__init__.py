"""The graph optimisations that torch needs: what one kernel of its own computes becomes one node.

Cleaning serves them: constants and shape arithmetic would hide the patterns, and types.
"""

from __future__ import annotations

from brisk.graph.draft import Draft
from brisk.graph.inference import infer_types, is_settled
from brisk.graph.passes.constants import fold_constants
from brisk.graph.passes.convolutions import fold_into_convolutions
from brisk.graph.passes.fusions import fuse_activations, fuse_attention, fuse_normalisation
from brisk.graph.passes.simplification import fix_reshapes, inline_branches, remove_copies

_ROUNDS = 3
"""Folding reveals types, types reveal constants; real models settle in two rounds."""


def optimise(draft: Draft) -> None:
    """Rewrite ``draft`` in place; its inputs, outputs and their values stay the same."""
    for _ in range(_ROUNDS):
        if not is_settled(draft):
            infer_types(draft)
        simplify = (fold_constants, inline_branches, remove_copies, fix_reshapes)
        if not sum(apply(draft) for apply in simplify):
            break
        draft.remove_dead()
    else:
        infer_types(draft)
    fuse_normalisation(draft)
    fuse_activations(draft)
    fold_into_convolutions(draft)
    fuse_attention(draft)
    draft.remove_dead()
