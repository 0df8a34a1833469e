"""Nodes in an order in which every value is computed before it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from onnx import NodeProto

from brisk.errors import InvalidModelError


def in_order(
    nodes: Sequence[NodeProto],
    known: Iterable[str],
    reads: Callable[[NodeProto], set[str]],
) -> list[NodeProto]:
    """``nodes`` sorted topologically, and left alone where they already are.

    Raises InvalidModelError naming a value that nothing defines, or the nodes of a cycle.
    """
    defined = set(known)
    ordered: list[NodeProto] = []
    waiting = [(node, reads(node)) for node in nodes]
    while waiting:
        still = []
        for node, needed in waiting:
            if needed <= defined:
                ordered.append(node)
                defined.update(node.output)
            else:
                still.append((node, needed))
        if len(still) == len(waiting):
            _explain(waiting, defined)
        waiting = still
    return ordered


def _explain(waiting: list[tuple[NodeProto, set[str]]], defined: set[str]) -> None:
    coming = {name for node, _ in waiting for name in node.output}
    for node, needed in waiting:
        missing = sorted(needed - defined - coming)
        if missing:
            raise InvalidModelError(
                f"node '{node.name or node.op_type}' ({node.op_type}) reads '{missing[0]}', "
                "which no node, input or initialiser defines"
            )
    names = ", ".join(f"'{node.name or node.op_type}'" for node, _ in waiting[:5])
    raise InvalidModelError(f"the graph has a cycle through nodes {names}")
