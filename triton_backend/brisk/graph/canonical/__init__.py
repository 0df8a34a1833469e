"""Brings every node to its operator's newest form, so that solutions know one form each.

Most definitions only ever gained types or optional parts: their nodes just take the newest
version. The rules in this folder rewrite the rest (attributes that became inputs, changed
defaults, other meanings). Where a rule gives up, the node keeps the version it was written
for. Source: ONNX's Changelog.md and Operators.md.
"""

from __future__ import annotations

from importlib import import_module

from brisk.graph.canonical import contributed
from brisk.graph.canonical.rules import RULES
from brisk.graph.draft import Draft
from brisk.graph.operators import check_node, newest_version
from brisk.graph.program import Node

for _family in ("attributes", "normalisation", "resampling", "softmax"):
    import_module(f"brisk.graph.canonical.{_family}")

_KEPT = {("", "Scan"): 9, ("", "Attention"): 24}
"""Operators whose definitions before the given version mean something that newer ones do not."""


def canonicalise(node: Node, draft: Draft) -> list[Node]:
    """Canonical nodes that mean the same as ``node``, whose version is its model's opset.

    May add constants and types to ``draft``. Raises UnsupportedOperatorError or
    InvalidModelError where the node does not fit its operator's definition.
    """
    if node.domain == contributed.DOMAIN:
        standard = contributed.expressed(node, draft)
        if standard is not None:
            return standard
    schema = check_node(node)
    version, inputs = int(schema.since_version), _stripped(node.inputs)
    if node.domain:
        return [_at(node, version, inputs)]
    below, rule = RULES.get(node.operator, (0, None))
    if rule is not None and version < below:
        node = _at(node, version, inputs)
        rewritten = rule(node, draft)
        return [node] if rewritten is None else rewritten
    newest = newest_version(node.operator, node.domain)
    if newest == 0 or version < _KEPT.get((node.domain, node.operator), 0):
        return [_at(node, version, inputs)]
    return [_at(node, newest, inputs)]


def _at(node: Node, version: int, inputs: tuple[str, ...]) -> Node:
    """``replace`` of these two, which for a whole model took a tenth of its reading."""
    return Node(
        node.operator, inputs, node.outputs, node.attributes, node.domain, version, node.name
    )


def _stripped(inputs: tuple[str, ...]) -> tuple[str, ...]:
    while inputs and not inputs[-1]:
        inputs = inputs[:-1]
    return inputs
