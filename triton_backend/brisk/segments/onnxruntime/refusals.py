"""Why ONNX Runtime refuses a segment: which node, of which operator and operator set.

Its own texts name a node or an operator, or neither; where they do not, the shortest beginning of
the segment that it refuses ends with the node to blame.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

PATIENCE_S = 2.0
"""For finding the node: sessions of the first nodes of a large segment take their time."""

_SHOWN_CHARACTERS = 80
_REASON_CHARACTERS = 1500

_PLACE = re.compile(r"/\S*/onnxruntime/\S+:\d+ [^\n]*?\)(?: const)? ")
_CODE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
_NAMES = (
    re.compile(r"In Node, \(\"(?P<name>[^\"]*)\", (?P<operator>[^,]*), "),
    re.compile(r"Node \((?P<name>[^)]*)\) Op \((?P<operator>[^)]*)\)"),
    re.compile(r"implementation for (?P<operator>[^(]*)\(\d+\) node with name '(?P<name>[^']*)'"),
    re.compile(r"operator \((?P<operator>[^)]*)\) in node \((?P<name>[^)]*)\)"),
    re.compile(r"Optype \((?P<operator>[^)]*)\).* in node \((?P<name>[^)]*)\)"),
    re.compile(r"error: [^\n]*:(?P<operator>[^:(]*)\(-?\d+\) is not a registered"),
)
_VERSIONS = re.compile(r"Unsupported model IR version|only \*guarantees\* support|is not acyclic")
_READS = re.compile(r"Node input '(?P<value>[^']*)' is not")
_MAKES = re.compile(r"Duplicate definition of name \((?P<value>[^)]*)\)")


def shown(name: str) -> str:
    """``name`` in a message: bounded, with what cannot be printed escaped."""
    text = repr(name)[1:-1]
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"


def reason_of(error: Exception) -> str:
    """ONNX Runtime's words, without its own code's places."""
    text = _PLACE.sub("", _CODE.sub("", str(error))).strip()
    text = "".join(each if each.isprintable() else " " for each in text)
    return text if len(text) <= _REASON_CHARACTERS else text[:_REASON_CHARACTERS] + "…"


def blamed(proto: ModelProto, error: Exception, is_taken: Callable[[ModelProto], bool]) -> str:
    """What to blame of ``proto``, in words: a node with its operator, or all operator sets.

    ``is_taken``: whether ONNX Runtime makes a session of a model.
    """
    try:
        return _blamed(proto, error, is_taken)
    except UnicodeDecodeError as decoding:
        return f"a name that is no UTF-8 text ({decoding})"


def _blamed(proto: ModelProto, error: Exception, is_taken: Callable[[ModelProto], bool]) -> str:
    versions = {entry.domain or "ai.onnx": entry.version for entry in proto.opset_import}
    node = None
    if not _VERSIONS.search(str(error)):
        node = _named(proto.graph, str(error)) or _found(proto, is_taken)
    if node is None:
        sets = ", ".join(f"{shown(name)} {version}" for name, version in versions.items())
        return f"no node found, operator sets {sets}, IR version {proto.ir_version}"
    domain = node.domain or "ai.onnx"
    version = versions.get(domain, "not imported")
    made = node.output[0] if node.output else ""
    name = f"node '{shown(node.name)}'" if node.name else f"the node that makes '{shown(made)}'"
    return (
        f"{name}, operator {shown(node.op_type)} of domain {shown(domain)}, operator set {version}"
    )


def _named(graph: GraphProto, text: str) -> NodeProto | None:
    """The only node that the text can mean."""
    for pattern in _NAMES:
        if (match := pattern.search(text)) is None:
            continue
        found = match.groupdict()
        nodes = [node for node in graph.node if node.op_type == found["operator"]]
        if found.get("name"):
            nodes = [node for node in nodes if node.name == found["name"]]
        if len(nodes) == 1:
            return nodes[0]
    if match := _READS.search(text):
        return next((node for node in graph.node if match["value"] in node.input), None)
    if match := _MAKES.search(text):
        makers = [node for node in graph.node if match["value"] in node.output]
        return makers[-1] if makers else None
    return None


def _found(proto: ModelProto, is_taken: Callable[[ModelProto], bool]) -> NodeProto | None:
    """The last node of the shortest beginning that is refused, by halving."""
    nodes = proto.graph.node
    if not nodes or is_taken(_beginning(proto, len(nodes))):
        return None  # the nodes are not to blame, or not they alone
    taken, refused = 0, len(nodes)
    until_s = time.monotonic() + PATIENCE_S
    while refused - taken > 1:
        if time.monotonic() > until_s:
            return None
        middle = (taken + refused) // 2
        if is_taken(_beginning(proto, middle)):
            taken = middle
        else:
            refused = middle
    return nodes[refused - 1]


def _beginning(proto: ModelProto, count: int) -> ModelProto:
    """The first ``count`` nodes; all that they make is given out, so that none is left away."""
    graph = proto.graph
    kept = GraphProto(name=graph.name)
    kept.node.extend(graph.node[:count])
    for field in ("initializer", "sparse_initializer", "input", "value_info"):
        getattr(kept, field).extend(getattr(graph, field))
    declared = {info.name: info for info in graph.output}
    made = dict.fromkeys(name for node in kept.node for name in node.output if name)
    kept.output.extend(declared.get(name, ValueInfoProto(name=name)) for name in made)
    return ModelProto(
        ir_version=proto.ir_version,
        opset_import=proto.opset_import,
        functions=proto.functions,
        graph=kept,
    )
