"""Typed access to a node's attributes."""

from __future__ import annotations

from brisk.graph.program import Node


def integers(node: Node, name: str) -> tuple[int, ...] | None:
    """An attribute that is a list of int; None where it is absent."""
    value = node.attributes.get(name)
    if value is None:
        return None
    assert isinstance(value, tuple), f"{node.describe()}: '{name}' is no list"
    return tuple(int(item) for item in value)  # type: ignore[arg-type]  # the schema says so


def integer(node: Node, name: str, default: int) -> int:
    value = node.attributes.get(name, default)
    assert isinstance(value, int), f"{node.describe()}: '{name}' is no integer"
    return value


def number(node: Node, name: str, default: float) -> float:
    value = node.attributes.get(name, default)
    assert isinstance(value, (int, float)), f"{node.describe()}: '{name}' is no number"
    return float(value)
