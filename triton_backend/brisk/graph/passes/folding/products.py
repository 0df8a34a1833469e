"""A chain of multiplications and divisions by constants, seen as one product."""

from __future__ import annotations

from dataclasses import dataclass, field

from brisk.graph.program import Layer
from brisk.graph.rewriting import Rewriter, plain


@dataclass(slots=True)
class Product:
    """``factor`` times the values ``leaves``; ``parts`` are the layers that multiply."""

    factor: float = 1.0
    leaves: list[str] = field(default_factory=list)
    parts: list[Layer] = field(default_factory=list)


def product_of(graph: Rewriter, name: str, root: Layer | None = None) -> Product:
    """The product that makes ``name``, opened up as far as values have no other readers.

    ``root``: the layer that makes ``name`` where it is to be opened whoever reads it.
    """
    result = Product()
    _open(graph, name, root, result)
    return result


def _open(graph: Rewriter, name: str, layer: Layer | None, result: Product) -> None:
    scalar = graph.scalar(name)
    if scalar is not None:
        result.factor *= scalar
        return
    if layer is None and graph.sole_reader(name) is not None:
        layer = graph.maker(name)
    node = None if layer is None else plain(layer)
    if layer is None or node is None or node.operator not in ("Mul", "Div"):
        result.leaves.append(name)
        return
    if node.operator == "Mul":
        result.parts.append(layer)
        for operand in node.inputs:
            _open(graph, operand, None, result)
        return
    divisor = graph.scalar(node.inputs[1])
    if not divisor:
        result.leaves.append(name)
        return
    result.parts.append(layer)
    result.factor /= divisor
    _open(graph, node.inputs[0], None, result)


def sum_with_scalar(graph: Rewriter, name: str) -> tuple[str, float, Layer] | None:
    """``(x, c, layer)`` where ``name`` is ``x + c`` with a constant scalar ``c``."""
    node = graph.made_by(name, "Add")
    layer = graph.maker(name)
    if node is None or layer is None:
        return None
    for place in (0, 1):
        scalar = graph.scalar(node.inputs[1 - place])
        if scalar is not None and graph.scalar(node.inputs[place]) is None:
            return node.inputs[place], scalar, layer
    return None
