"""Recognises activations that exporters spell out: x times something of x.

Gelu (exact and tanh form), Swish/Silu, HardSwish, HardSigmoid. Every form is a product, so the
product is opened and its factors compared, whatever the order of multiplication.
"""

from __future__ import annotations

from math import isclose, pi, sqrt

from brisk.graph.attributes import number
from brisk.graph.draft import Draft
from brisk.graph.passes.folding.products import Product, product_of, sum_with_scalar
from brisk.graph.program import Attribute, Layer
from brisk.graph.rewriting import Rewriter, optional_input, plain

_TOLERANCE = 1e-3
"""Relative: exporters round constants, to half precision at worst."""


def fuse_gates(draft: Draft) -> int:
    graph = Rewriter(draft)
    for layer in graph.backwards():
        node = plain(layer)
        if node is None or node.operator not in ("Mul", "Div"):
            continue
        product = product_of(graph, node.outputs[0], layer)
        if not _hard_sigmoid(graph, layer, product) and len(product.leaves) == 2:
            for value, gate in (product.leaves, product.leaves[::-1]):
                if any(match(graph, layer, product, value, gate) for match in _MATCHES):
                    break
    return graph.commit()


def _close(one: float, other: float) -> bool:
    return isclose(one, other, rel_tol=_TOLERANCE)


def _fuse(
    graph: Rewriter,
    root: Layer,
    parts: list[Layer],
    operator: str,
    value: str,
    **attributes: Attribute,
) -> bool:
    source, target = graph.draft.type_of(value), graph.draft.type_of(root.outputs[0])
    if source.rank is None or source.rank != target.rank:
        return False
    main = graph.draft.node(operator, (value,), root.outputs, root.name, **attributes)
    return graph.fuse(root, parts, main) is not None


def _gelu_exact(graph: Rewriter, root: Layer, product: Product, value: str, gate: str) -> bool:
    """``0.5 · x · (1 + erf(x / sqrt 2))``."""
    found = sum_with_scalar(graph, gate)
    if found is None or not _close(product.factor * found[1], 0.5) or not _close(found[1], 1):
        return False
    erf = graph.made_by(found[0], "Erf")
    erf_layer = graph.maker(found[0])
    if erf is None or erf_layer is None:
        return False
    inner = product_of(graph, erf.inputs[0])
    if inner.leaves != [value] or not _close(inner.factor, sqrt(0.5)):
        return False
    parts = [*product.parts, found[2], erf_layer, *inner.parts]
    return _fuse(graph, root, parts, "Gelu", value)


def _gelu_tanh(graph: Rewriter, root: Layer, product: Product, value: str, gate: str) -> bool:
    """``0.5 · x · (1 + tanh(sqrt(2 / π) · (x + 0.044715 · x³)))``."""
    found = sum_with_scalar(graph, gate)
    if found is None or not _close(product.factor, 0.5) or not _close(found[1], 1):
        return False
    tanh = graph.made_by(found[0], "Tanh")
    tanh_layer = graph.maker(found[0])
    if tanh is None or tanh_layer is None:
        return False
    outer = product_of(graph, tanh.inputs[0])
    if not _close(outer.factor, sqrt(2 / pi)):
        return False
    polynomial = _cubic(graph, outer.leaves, value)
    if polynomial is None:
        return False
    parts = [*product.parts, found[2], tanh_layer, *outer.parts, *polynomial]
    return _fuse(graph, root, parts, "Gelu", value, approximate="tanh")


def _cubic(graph: Rewriter, leaves: list[str], value: str) -> list[Layer] | None:
    """Layers of ``x + 0.044715 x³``, or of ``x · (1 + 0.044715 x²)``; None for anything else."""
    degree, name = 3, leaves[0]
    if len(leaves) == 2 and value in leaves:
        degree, name = 2, leaves[1 - leaves.index(value)]
    elif len(leaves) != 1:
        return None
    add, layer = graph.made_by(name, "Add"), graph.maker(name)
    if add is None or layer is None:
        return None
    for place in (0, 1):
        first = add.inputs[place]
        fits = first == value if degree == 3 else _close(graph.scalar(first) or 0.0, 1)
        if not fits:
            continue
        power = product_of(graph, add.inputs[1 - place])
        extra = _power(graph, power.leaves, value, degree)
        if extra is not None and _close(power.factor, 0.044715):
            return [layer, *power.parts, *extra]
    return None


def _power(graph: Rewriter, leaves: list[str], value: str, degree: int) -> list[Layer] | None:
    """Layers besides multiplications that make ``value ** degree`` of ``leaves``."""
    count, parts = 0, []
    for leaf in leaves:
        if leaf == value:
            count += 1
            continue
        node, layer = graph.made_by(leaf, "Pow", "Mul"), graph.maker(leaf)
        if node is None or layer is None or node.inputs[0] != value:
            return None
        exponent = graph.scalar(node.inputs[1]) if node.operator == "Pow" else 2.0
        if exponent is None or (node.operator == "Mul" and node.inputs[1] != value):
            return None
        count += int(exponent)
        parts.append(layer)
    return parts if count == degree else None


def _swish(graph: Rewriter, root: Layer, product: Product, value: str, gate: str) -> bool:
    """``x · sigmoid(alpha · x)``."""
    sigmoid, layer = graph.made_by(gate, "Sigmoid"), graph.maker(gate)
    if sigmoid is None or layer is None or product.factor != 1.0:
        return False
    inner = product_of(graph, sigmoid.inputs[0])
    if inner.leaves != [value]:
        return False
    parts = [*product.parts, layer, *inner.parts]
    return _fuse(graph, root, parts, "Swish", value, alpha=inner.factor)


def _hard_swish(graph: Rewriter, root: Layer, product: Product, value: str, gate: str) -> bool:
    """``x · clip(x + 3, 0, 6) / 6``, or ``x · hard_sigmoid(x)`` with slope 1/6."""
    sigmoid, layer = graph.made_by(gate, "HardSigmoid"), graph.maker(gate)
    if sigmoid is not None and layer is not None and sigmoid.inputs[0] == value:
        slope = number(sigmoid, "alpha", 0.2)
        offset = number(sigmoid, "beta", 0.5)
        if product.factor == 1.0 and _close(slope, 1 / 6) and _close(offset, 0.5):
            return _fuse(graph, root, [*product.parts, layer], "HardSwish", value)
        return False
    ramp = _ramp(graph, gate)
    if ramp is None or ramp[0] != value or not _close(product.factor, 1 / 6):
        return False
    return _fuse(graph, root, [*product.parts, *ramp[1]], "HardSwish", value)


def _hard_sigmoid(graph: Rewriter, root: Layer, product: Product) -> bool:
    """``clip(x + 3, 0, 6) / 6``."""
    if len(product.leaves) != 1 or not _close(product.factor, 1 / 6):
        return False
    ramp = _ramp(graph, product.leaves[0])
    if ramp is None:
        return False
    parts = [*product.parts, *ramp[1]]
    return _fuse(graph, root, parts, "HardSigmoid", ramp[0], alpha=1 / 6, beta=0.5)


def _ramp(graph: Rewriter, name: str) -> tuple[str, list[Layer]] | None:
    """``(x, layers)`` of ``clip(x + 3, 0, 6)``."""
    clip, layer = graph.made_by(name, "Clip"), graph.maker(name)
    if clip is None or layer is None:
        return None
    low, high = (graph.scalar(optional_input(clip, place)) for place in (1, 2))
    found = sum_with_scalar(graph, clip.inputs[0])
    if low != 0 or high != 6 or found is None or found[1] != 3:
        return None
    return found[0], [layer, found[2]]


_MATCHES = (_gelu_exact, _gelu_tanh, _swish, _hard_swish)
