"""Which operators a model may use: the sets Brisk reads, and what their schemas demand."""

from __future__ import annotations

from functools import cache

import onnx
from onnx.defs import OpSchema

from brisk.errors import InvalidModelError, UnsupportedOperatorError
from brisk.graph.program import Node

OLDEST_OPSET = 7
DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview.training", "ai.onnx.preview")
"""Operator sets whose operators the reference solution may execute."""


@cache
def find_schema(operator: str, version: int, domain: str) -> OpSchema | None:
    try:
        return onnx.defs.get_schema(operator, version, domain)
    except onnx.defs.SchemaError:
        return None


@cache
def newest_version(operator: str, domain: str) -> int:
    """The version of an operator's newest definition that is not deprecated; 0: none."""
    schema = find_schema(operator, 10**6, domain)
    if schema is None or schema.deprecated:
        return 0
    return int(schema.since_version)


def domain_of(name: str) -> str:
    """The default operator set has two spellings."""
    return "" if name == "ai.onnx" else name


def check_node(node: Node) -> OpSchema:
    """The definition of ``node`` at ``node.version`` (here: its model's opset).

    Raises UnsupportedOperatorError where it has none, InvalidModelError where the node does
    not fit it.
    """
    schema = find_schema(node.operator, node.version, node.domain)
    if not node.domain:
        _check_age(node, schema)
    reason = "this opset has no such operator"
    if node.domain not in DOMAINS:
        known = ", ".join(domain or "ai.onnx" for domain in DOMAINS)
        reason = f"domain {node.domain} is not supported (supported: {known})"
        schema = None
    if schema is None:
        raise UnsupportedOperatorError(f"{node.describe()} is not supported: {reason}")
    _check_arity(node, "inputs", len(node.inputs), schema.min_input, schema.max_input)
    _check_arity(node, "outputs", len(node.outputs), schema.min_output, schema.max_output)
    for name, attribute in schema.attributes.items():
        if attribute.required and name not in node.attributes:
            raise InvalidModelError(f"{node.describe()} lacks its attribute '{name}'")
    for name in node.attributes:
        if name not in schema.attributes:
            raise InvalidModelError(f"{node.describe()} has no attribute '{name}'")
    return schema


def _check_age(node: Node, schema: OpSchema | None) -> None:
    """Refuse what newer or older sets than Brisk reads may mean by ``node``."""
    newest = onnx.defs.onnx_opset_version()
    if node.version > newest:
        raise UnsupportedOperatorError(
            f"{node.describe()} is not supported: the newest opset that the installed onnx "
            f"{onnx.__version__} knows is {newest}"
        )
    if node.version >= OLDEST_OPSET:
        return
    oldest = find_schema(node.operator, OLDEST_OPSET, "")
    if schema is None or oldest is None or oldest.since_version != schema.since_version:
        raise UnsupportedOperatorError(
            f"{node.describe()} is not supported: the oldest opset that is read is {OLDEST_OPSET}"
        )


def _check_arity(node: Node, what: str, count: int, least: int, most: int) -> None:
    if not least <= count <= most:
        expected = str(least) if least == most else f"{least} to {most}"
        raise InvalidModelError(f"{node.describe()} has {count} {what}, expected {expected}")
