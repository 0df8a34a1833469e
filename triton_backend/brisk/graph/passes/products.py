"""What patterns share: chains of multiplications by constants, and sums with one."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isclose

from brisk.graph.draft import Draft, is_standard
from brisk.graph.program import Node

_TOLERANCE = 1e-3
"""Relative: exporters round constants, to half precision at worst."""


def is_close(one: float, other: float) -> bool:
    return isclose(one, other, rel_tol=_TOLERANCE)


@dataclass(slots=True)
class Product:
    """``factor`` times the values ``leaves``; ``parts`` are the nodes that multiply."""

    factor: float = 1.0
    leaves: list[str] = field(default_factory=list)
    parts: list[Node] = field(default_factory=list)


def product_of(draft: Draft, name: str, root: Node | None = None) -> Product:
    """The product that makes ``name``, opened up as far as values have no other readers.

    ``root``: the node that makes ``name`` where it is to be opened whoever reads it.
    """
    result = Product()
    _open(draft, name, root, result)
    return result


def _open(draft: Draft, name: str, node: Node | None, result: Product) -> None:
    scalar = draft.scalar(name)
    if scalar is not None:
        result.factor *= scalar
        return
    if node is None and draft.is_read_once(name):
        node = draft.maker(name, "Mul", "Div")
    divisor = None
    if node is not None and is_standard(node, "Div"):
        divisor = draft.scalar(node.inputs[1])
    if node is None or not (is_standard(node, "Mul") or divisor):
        result.leaves.append(name)
        return
    result.parts.append(node)
    result.factor /= divisor or 1.0
    for operand in node.inputs[: 1 if divisor else 2]:
        _open(draft, operand, None, result)


def sum_with_scalar(draft: Draft, name: str) -> tuple[str, float, Node] | None:
    """``(x, c, node)`` where ``name`` is ``x + c`` with a constant scalar ``c``."""
    node = draft.maker(name, "Add")
    if node is None:
        return None
    for place in (0, 1):
        scalar = draft.scalar(node.inputs[1 - place])
        if scalar is not None and draft.scalar(node.inputs[place]) is None:
            return node.inputs[place], scalar, node
    return None
