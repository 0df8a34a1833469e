"""The graph optimisations, one file each, in the order in which they help one another."""

from __future__ import annotations

from brisk.graph.draft import Draft
from brisk.graph.files.shape_inference import is_settled, refine_types
from brisk.graph.passes.cleaning.branches import inline_branches
from brisk.graph.passes.cleaning.duplicates import merge_duplicates
from brisk.graph.passes.cleaning.noops import remove_dead, remove_noops
from brisk.graph.passes.cleaning.reshapes import simplify_matrix_softmax, simplify_reshapes
from brisk.graph.passes.folding.constants import fold_constants
from brisk.graph.passes.folding.input_scaling import fold_input_scaling, fold_padding
from brisk.graph.passes.folding.scaling import fold_batch_normalization, fold_scaling
from brisk.graph.passes.fusing.activations import fuse_gates
from brisk.graph.passes.fusing.attention import fuse_attention
from brisk.graph.passes.fusing.dynamic_quantization import fuse_dynamic_quantization
from brisk.graph.passes.fusing.epilogues import fuse_epilogues, fuse_linear
from brisk.graph.passes.fusing.layer_normalization import fuse_layer_normalization
from brisk.graph.passes.fusing.self_attention import fuse_self_attention
from brisk.graph.symbolic import propagate

_SIMPLIFY = (
    fold_constants,
    inline_branches,
    simplify_matrix_softmax,
    simplify_reshapes,
    remove_noops,
    merge_duplicates,
    remove_dead,
)
_FUSE = (
    fold_padding,
    fold_scaling,
    fold_batch_normalization,
    fold_scaling,
    fuse_layer_normalization,
    fuse_gates,
    fold_input_scaling,
    fuse_attention,
    fuse_dynamic_quantization,
    fuse_linear,
    fuse_self_attention,
    fuse_epilogues,
    remove_dead,
)
_ROUNDS = 3
"""Folding reveals types, types reveal constants; real models settle in two rounds."""


def optimise(draft: Draft) -> None:
    """Rewrite ``draft`` in place; its inputs, outputs and their values stay the same."""
    is_known = False
    for _ in range(_ROUNDS):
        if not is_known:
            propagate(draft)
        if not sum(apply(draft) for apply in _SIMPLIFY):
            break
        if not is_settled(draft):
            refine_types(draft)
        else:
            is_known = not _computes_shapes(draft)
    for apply in _FUSE:
        apply(draft)


def _computes_shapes(draft: Draft) -> bool:
    """Whether a layer makes elements that ``propagate`` would follow."""
    return any(layer.main.operator in ("Shape", "Size") for layer in draft.layers)
