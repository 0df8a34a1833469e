"""Recognises activations that exporters spell out as a product of x and something of x.

Gelu (the exact form), Swish and HardSwish. The product is opened and its factors compared,
whatever their order.
"""

from __future__ import annotations

from math import sqrt

from brisk.graph.draft import Draft, is_standard
from brisk.graph.passes.products import is_close, product_of, sum_with_scalar
from brisk.graph.program import Node


def fuse_activations(draft: Draft) -> None:
    for node in draft:
        if not is_standard(node, "Mul", "Div"):
            continue
        product = product_of(draft, node.outputs[0], node)
        if len(product.leaves) != 2:
            continue
        for value, gate in (product.leaves, product.leaves[::-1]):
            if draft.rank(value) is None or draft.rank(value) != draft.rank(node.outputs[0]):
                continue
            for operator, match in _FORMS.items():
                inside = match(draft, value, gate, product.factor)
                if inside:
                    fused = draft.node(operator, (value,), node.outputs, node.name)
                    draft.fuse(node, [*product.parts, *inside], fused)
                    break


def _gelu(draft: Draft, value: str, gate: str, factor: float) -> list[Node]:
    """The nodes of ``gate = 1 + erf(value / sqrt 2)``, half of which is the factor; else none."""
    found = sum_with_scalar(draft, gate)
    if found is None or not is_close(factor, 0.5) or not is_close(found[1], 1):
        return []
    erf = draft.maker(found[0], "Erf")
    inner = None if erf is None else product_of(draft, erf.inputs[0])
    if erf is None or inner is None or inner.leaves != [value]:
        return []
    return [found[2], erf, *inner.parts] if is_close(inner.factor, sqrt(0.5)) else []


def _swish(draft: Draft, value: str, gate: str, factor: float) -> list[Node]:
    """``gate = sigmoid(value)``."""
    sigmoid = draft.maker(gate, "Sigmoid")
    is_swish = sigmoid is not None and sigmoid.inputs[0] == value and factor == 1.0
    return [sigmoid] if is_swish and sigmoid is not None else []


def _hard_swish(draft: Draft, value: str, gate: str, factor: float) -> list[Node]:
    """``gate = clip(value + 3, 0, 6)``, a sixth of which is the factor."""
    clip = draft.maker(gate, "Clip")
    found = None if clip is None else sum_with_scalar(draft, clip.inputs[0])
    if clip is None or found is None or found[0] != value or not is_close(factor, 1 / 6):
        return []
    bounds = (draft.scalar(clip.input(1)), draft.scalar(clip.input(2)), found[1])
    return [clip, found[2]] if bounds == (0, 6, 3) else []


_FORMS = {"Gelu": _gelu, "Swish": _swish, "HardSwish": _hard_swish}
