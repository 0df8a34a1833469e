"""Computes at load what depends on constants alone, within bounds."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import onnx

from brisk.graph.attributes import integer, integers
from brisk.graph.draft import Draft
from brisk.graph.files.element_types import dtype_of_element, element_of_dtype
from brisk.graph.files.proto import to_node_proto
from brisk.graph.files.value_types import type_of_array
from brisk.graph.passes.cleaning.duplicates import RANDOM
from brisk.graph.program import ContainerKind, Node
from brisk.graph.rewriting import Rewriter, plain
from brisk.graph.symbolic.values import as_array

FREE_BYTES = 1 << 20
"""A folded result may always be this large …"""

GROWTH = 4
"""… or this many times its constant inputs (int8 weights that become float32)."""

FREE_TOTAL_BYTES = 64 << 20
"""All constants together may grow by this much …"""

GROWTH_TOTAL = 5
"""… beyond this many times what the model brought: a chain of nodes that each double their input
would else fill any memory."""


def fold_constants(draft: Draft) -> int:
    graph = Rewriter(draft)
    left_bytes = FREE_TOTAL_BYTES + GROWTH_TOTAL * draft.brought_bytes
    left_bytes -= sum(array.nbytes for array in draft.weights.values())
    for layer in graph:
        node = plain(layer)
        if node is None or any(name in draft.outputs for name in node.outputs):
            continue
        known = as_array(draft, node.outputs[0]) if len(node.outputs) == 1 else None
        if known is None and not _is_foldable(graph, node, left_bytes):
            continue
        results = _evaluate(graph, node) if known is None else [known]
        if results is None:
            continue
        for name, array in zip(node.outputs, results, strict=True):
            if name:
                array.setflags(write=False)
                draft.weights[name] = array
                draft.types[name] = type_of_array(array)
                left_bytes -= array.nbytes
        graph.remove(layer)
    return graph.commit()


def _is_foldable(graph: Rewriter, node: Node, left_bytes: int) -> bool:
    draft = graph.draft
    if node.operator in RANDOM or node.domain or not node.inputs:
        return False
    arrays = [draft.weights.get(name) for name in node.inputs if name]
    if any(array is None for array in arrays):
        return False
    limit = max(FREE_BYTES, GROWTH * sum(array.nbytes for array in arrays if array is not None))
    limit = min(limit, max(left_bytes, 0))
    return all(not name or _size(draft, name) <= limit for name in node.outputs)


def _size(draft: Draft, name: str) -> float:
    """Bytes of a value to come; infinite where the types do not tell."""
    kind = draft.type_of(name)
    if kind.container is not ContainerKind.TENSOR or not kind.is_static or kind.dtype is None:
        return float("inf")
    assert kind.shape is not None
    if kind.dtype == "string":
        return float("inf")
    item = dtype_of_element(element_of_dtype(kind.dtype)).itemsize
    return prod(int(size) for size in kind.shape if size is not None) * item


def _evaluate(graph: Rewriter, node: Node) -> list[np.ndarray] | None:
    """The node's outputs; None where the reference cannot compute them."""
    inputs = {name: graph.draft.weights[name] for name in node.inputs if name}
    fast = _directly(node, [inputs[name] for name in node.inputs if name in inputs])
    if fast is not None:
        return [fast]
    from onnx.reference import ReferenceEvaluator

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # constant NaN or infinity is the model's affair
            model = onnx.GraphProto(name="constant", node=[to_node_proto(node)])
            model.output.extend(onnx.ValueInfoProto(name=name) for name in node.outputs if name)
            results: Sequence[Any] = ReferenceEvaluator(
                model, opsets={"": max(node.version, 1)}
            ).run(None, inputs)
    except Exception:  # noqa: BLE001 - an operator that fails here fails at run time, if ever
        return None
    arrays = [np.asarray(result) for result in results]
    made = iter(arrays)
    return [next(made) if name else np.empty(0) for name in node.outputs]


def _directly(node: Node, inputs: list[np.ndarray]) -> np.ndarray | None:
    """The commonest operators on plain numbers without the reference's preparation."""
    if any(array.dtype.kind not in "fiub" for array in inputs):
        return None
    operator = node.operator
    if operator == "Mul" and inputs[0].dtype.kind != "b":
        return np.asarray(inputs[0] * inputs[1])
    if operator == "Cast":
        target = dtype_of_element(integer(node, "to", 0))
        widening = target.kind == "f" and inputs[0].dtype.kind in "iub"
        return inputs[0].astype(target) if widening and target.itemsize >= 4 else None
    if operator == "Transpose":
        return np.ascontiguousarray(inputs[0].transpose(integers(node, "perm")))
    if operator == "Slice" and len(node.inputs) == len(inputs):
        return _sliced(*inputs)
    if operator == "Gather":
        axis = integer(node, "axis", 0)
        try:
            return np.asarray(np.take(inputs[0], inputs[1], axis))
        except IndexError:
            return None
    return None


def _sliced(
    data: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    axes: np.ndarray | None = None,
    steps: np.ndarray | None = None,
) -> np.ndarray | None:
    """Slice with positive steps, whose bounds mean the same to Python."""
    steps = np.ones_like(starts) if steps is None else steps
    axes = np.arange(starts.size) if axes is None else axes
    if (steps < 1).any():
        return None
    places = [slice(None)] * data.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        places[int(axis)] = slice(int(start), int(end), int(step))
    return np.ascontiguousarray(data[tuple(places)])
