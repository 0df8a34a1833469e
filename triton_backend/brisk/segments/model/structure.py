"""The structure that models have in common: a segment's graph without its weights' values.

The optimized graph of a segment with its weights as inputs is one session for every model of that
structure: the next version of a model, a fine-tune, a backbone under several heads (the pattern
that a solution is found by: PASK, III-B). Names differ between exports, so canonical ones replace
them; values that decide shapes, axes or branches stay in the graph and distinguish structures.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import count
from typing import NamedTuple

import numpy as np
from onnx import (
    AttributeProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    ValueInfoProto,
    numpy_helper,
)

from brisk.graph.files.element_types import COMPLEX, PACKED
from brisk.segments.model.graph_names import has_bodies
from brisk.segments.onnxruntime import Weight
from brisk.segments.source import SegmentSpec

_FLOATS = frozenset(
    {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE}
)

_READ_AT_ONCE = frozenset({"Resize", "Upsample", "Range", "Pad", "Clip", "NonMaxSuppression"})
"""Operators some of whose kernels read constants when the session is made."""

_QUANTISED = ("Linear", "Integer", "Quantize", "NBits", "QOrdered", "QAttention", "QEmbed")
"""Parts of names of operators that lay out their weights, or take scales, when it is made."""


class Structure(NamedTuple):
    """A segment without its weights' values. Names are canonical."""

    proto: bytes
    """The graph, whose weights are inputs."""
    digest: str
    """The digest of ``proto``."""
    inputs: tuple[str, ...]
    """The names of inputs, in the order of the segment's."""
    outputs: tuple[str, ...]
    """The names of outputs, in the order of the segment's."""
    weights: tuple[Weight, ...]


def structure_of(
    optimised: bytes, weights: Sequence[Weight], spec: SegmentSpec
) -> Structure | None:
    """Return the structure of a segment that ``save_optimised`` made; None: no other model could
    run in it."""
    model = ModelProto.FromString(optimised)
    graph = model.graph
    if model.functions or graph.sparse_initializer or has_bodies(graph):
        return None
    constants = {tensor.name: tensor for tensor in graph.initializer}
    ends = [*spec.inputs, *spec.outputs]
    if len(set(ends)) < len(ends) or not constants.keys().isdisjoint(ends):
        return None  # it passes on a value that it does not compute
    lifted = _lifted(model, weights, constants)
    if lifted is None:
        return None
    names = _Names(spec)
    nodes = _in_order(graph.node, spec, lifted, constants)
    used_weights, used_constants = [], []
    for node in nodes:
        for name in node.input:
            if not name or name in names.known:
                continue
            if name in lifted:
                used_weights.append(replace(lifted[name], name=names.new("w", name)))
            elif name in constants:
                names.new("c", name)
                used_constants.append(constants[name])
            else:
                return None  # it comes from an input that is none of the segment's
        for name in node.output:
            if name and name not in names.known:
                names.new("v", name)
    graph_bytes = _rebuilt(model, nodes, names, used_weights, used_constants, spec)
    digest = hashlib.blake2b(graph_bytes, digest_size=16).hexdigest()
    inputs = tuple(names.known[name] for name in spec.inputs)
    outputs = tuple(names.known[name] for name in spec.outputs)
    return Structure(graph_bytes, digest, inputs, outputs, tuple(used_weights))


def _lifted(
    model: ModelProto, weights: Sequence[Weight], constants: Mapping[str, TensorProto]
) -> dict[str, Weight] | None:
    """Return the weights that become inputs, by name: all outside of the graph, and floats in it.

    None: one of the former must be known when the session is made, or is packed or complex.
    """
    fixed = {name for node in model.graph.node if is_fixed(node) for name in node.input}
    by_name = {weight.name: weight for weight in weights}
    if not fixed.isdisjoint(by_name):
        return None
    if any(weight.kind in PACKED or weight.kind in COMPLEX for weight in weights):
        return None
    for name, tensor in constants.items():
        if name not in by_name and name not in fixed and tensor.data_type in _FLOATS:
            by_name[name] = _embedded(tensor)
    return by_name


def _in_order(
    nodes: Sequence[NodeProto],
    spec: SegmentSpec,
    lifted: Mapping[str, Weight],
    constants: Mapping[str, TensorProto],
) -> list[NodeProto]:
    """Return the nodes in an order that depends on their connections alone, not on names or
    exporter.

    A node is identified by all that leads to it and all that it leads to; nodes that are alike in
    both are interchangeable.
    """
    maker = {name: number for number, node in enumerate(nodes) for name in node.output if name}
    origins: dict[str, object] = {name: ("i", number) for number, name in enumerate(spec.inputs)}
    for name, weight in lifted.items():
        origins[name] = ("w", weight.kind, weight.shape)
    for name, tensor in constants.items():
        if name not in lifted:
            bare = TensorProto()
            bare.CopyFrom(tensor)
            bare.ClearField("name")
            bare.ClearField("doc_string")
            origins[name] = ("c", bare.SerializeToString(deterministic=True))
    ends = {name: number for number, name in enumerate(spec.outputs)}
    above: list[str] = []
    readers: dict[int, list[tuple[int, int, int]]] = {number: [] for number in range(len(nodes))}
    for number, node in enumerate(nodes):
        description: list[object] = [node.domain, node.op_type]
        description += [each.SerializeToString(deterministic=True) for each in _attributes(node)]
        for place, name in enumerate(node.input):
            description.append(origins.get(name, ""))
            if name in maker:
                slot = list(nodes[maker[name]].output).index(name)
                readers[maker[name]].append((slot, place, number))
        above.append(_digest(description))
        for slot, name in enumerate(node.output):
            origins[name] = (above[number], slot)
    below = [""] * len(nodes)
    for number in reversed(range(len(nodes))):
        description = [ends.get(name, "") for name in nodes[number].output]
        description += sorted(
            (slot, place, above[reader], below[reader]) for slot, place, reader in readers[number]
        )
        below[number] = _digest(description)
    return _sorted(nodes, maker, [*zip(above, below, strict=True)])


def _sorted(
    nodes: Sequence[NodeProto], maker: Mapping[str, int], ranks: Sequence[tuple[str, str]]
) -> list[NodeProto]:
    """Return the nodes, each after those whose values it reads; of several candidates, the one of
    the least rank first."""
    waits = [len({maker[name] for name in node.input if name in maker}) for node in nodes]
    readers: dict[int, set[int]] = {number: set() for number in range(len(nodes))}
    for number, node in enumerate(nodes):
        for name in node.input:
            if name in maker:
                readers[maker[name]].add(number)
    ready = [(ranks[number], number) for number, left in enumerate(waits) if not left]
    heapify(ready)
    in_order = []
    while ready:
        _, number = heappop(ready)
        in_order.append(nodes[number])
        for reader in readers[number]:
            waits[reader] -= 1
            if not waits[reader]:
                heappush(ready, (ranks[reader], reader))
    return in_order


def _digest(told: object) -> str:
    return hashlib.blake2b(repr(told).encode(), digest_size=16).hexdigest()


def _attributes(node: NodeProto) -> list[AttributeProto]:
    return sorted(node.attribute, key=lambda each: each.name)


class _Names:
    """Canonical names of a graph's values, by the graph's own names."""

    def __init__(self, spec: SegmentSpec) -> None:
        self.known = {name: f"i{number}" for number, name in enumerate(spec.inputs)}
        self.known.update((name, f"o{number}") for number, name in enumerate(spec.outputs))
        self._numbers = {kind: count() for kind in "cvw"}

    def new(self, kind: str, name: str) -> str:
        new_name = self.known[name] = f"{kind}{next(self._numbers[kind])}"
        return new_name


def is_fixed(node: NodeProto) -> bool:
    """Whether the node's inputs may have to be known when a session is made."""
    return node.op_type in _READ_AT_ONCE or any(part in node.op_type for part in _QUANTISED)


def _embedded(tensor: TensorProto) -> Weight:
    """Return a small weight that lies in the graph itself."""
    array = np.ascontiguousarray(numpy_helper.to_array(tensor))
    shape = tuple(tensor.dims)
    return Weight(tensor.name, array.reshape(-1).view(np.uint8), tensor.data_type, shape)


def _rebuilt(
    model: ModelProto,
    nodes: Sequence[NodeProto],
    names: _Names,
    lifted: Sequence[Weight],
    kept: Sequence[TensorProto],
    spec: SegmentSpec,
) -> bytes:
    rebuilt = ModelProto(ir_version=model.ir_version)
    for entry in sorted(model.opset_import, key=lambda each: each.domain):
        rebuilt.opset_import.add().CopyFrom(entry)
    graph = rebuilt.graph
    graph.name = "structure"
    infos = {info.name: info for info in (*model.graph.input, *model.graph.output)}
    dimensions: dict[str, str] = {}
    for wanted, into in ((spec.inputs, graph.input), (spec.outputs, graph.output)):
        for name in wanted:
            into.append(_info(names.known[name], infos[name].type, dimensions))
    for weight in lifted:
        kind = TypeProto()
        kind.tensor_type.elem_type = weight.kind
        for size in weight.shape:
            kind.tensor_type.shape.dim.add().dim_value = size
        if not weight.shape:
            kind.tensor_type.shape.SetInParent()
        graph.input.append(ValueInfoProto(name=weight.name, type=kind))
    for tensor in kept:
        copied = graph.initializer.add()
        copied.CopyFrom(tensor)
        copied.ClearField("doc_string")
        copied.name = names.known[tensor.name]
    for node in nodes:
        graph.node.add(
            domain=node.domain,
            op_type=node.op_type,
            input=[names.known[name] if name else "" for name in node.input],
            output=[names.known[name] if name else "" for name in node.output],
            attribute=_attributes(node),
        )
    return rebuilt.SerializeToString(deterministic=True)


def _info(name: str, kind: TypeProto, dimensions: dict[str, str]) -> ValueInfoProto:
    info = ValueInfoProto(name=name, type=kind)
    if info.type.HasField("tensor_type"):
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = dimensions.setdefault(dim.dim_param, f"d{len(dimensions)}")
            dim.ClearField("denotation")
    return info
