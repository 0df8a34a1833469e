"""The table of canonicalisation rules and what they share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from brisk.graph.draft import Draft
from brisk.graph.operators import newest_version
from brisk.graph.program import Attribute, Node

Rule: TypeAlias = Callable[[Node, Draft], "list[Node] | None"]
"""Nodes that mean the same in newest form; None to keep the node as it is."""

RULES: dict[str, tuple[int, Rule]] = {}
"""By operator: the rule, and the version below which it applies."""


def below(version: int, *operators: str) -> Callable[[Rule], Rule]:
    """Register a rule for definitions of ``operators`` older than ``version``."""

    def register(rule: Rule) -> Rule:
        for operator in operators:
            RULES[operator] = (version, rule)
        return rule

    return register


def upgraded(
    node: Node,
    *inputs: str,
    operator: str | None = None,
    without: tuple[str, ...] = (),
    **attributes: Attribute,
) -> Node:
    """``node`` in its newest version with other inputs and changed attributes."""
    kept = {key: value for key, value in node.attributes.items() if key not in without}
    while inputs and not inputs[-1]:
        inputs = inputs[:-1]
    operator = operator or node.operator
    return replace(
        node,
        operator=operator,
        inputs=inputs,
        attributes={**kept, **attributes},
        version=newest_version(operator, ""),
    )
