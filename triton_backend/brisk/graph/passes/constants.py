"""Computes at load what depends on constants alone, within bounds."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from math import prod

import numpy as np

from brisk.graph.draft import Draft, is_standard
from brisk.graph.files.element_types import dtype_of_name
from brisk.graph.files.proto import evaluator_of
from brisk.graph.program import ContainerKind, Node

RANDOM = frozenset(
    {
        *("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike"),
        *("RandomUniform", "RandomUniformLike", "Dropout"),
    }
)
"""Operators that may answer differently each time."""

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
    """Replace nodes by the constants they make; returns how many went."""
    folded = 0
    left_bytes = FREE_TOTAL_BYTES + GROWTH_TOTAL * draft.brought_bytes
    left_bytes -= sum(array.nbytes for array in draft.weights.values())
    for node in draft:
        if any(name in draft.outputs for name in node.outputs):
            continue
        arrays = _sizes(draft, node)
        if arrays is None and _is_foldable(draft, node, left_bytes):
            arrays = _evaluate(node, draft.weights)
        if arrays is None:
            continue
        for name, array in arrays.items():
            draft.keep_weight(name, array)
            left_bytes -= array.nbytes
        draft.remove(node)
        for name in node.inputs:
            if name in draft.weights and not draft.is_used(name):
                left_bytes += draft.weights.pop(name).nbytes
        folded += 1
    return folded


def _sizes(draft: Draft, node: Node) -> dict[str, np.ndarray] | None:
    """The result of Shape, or what is taken of it, where these sizes are numbers."""
    asked = node
    if is_standard(node, "Gather", "Slice"):
        asked = draft.maker(node.inputs[0], "Shape")
    shape = draft.type_of(asked.inputs[0]).shape if is_standard(asked, "Shape") else None
    if shape is None:
        return None
    last = asked.integer("end", len(shape))
    sizes = shape[asked.integer("start", 0) : last]
    taken = np.arange(len(sizes))
    if node is not asked:
        if not all(name in draft.weights for name in node.inputs[1:] if name):
            return None
        found = _evaluate(node, {**draft.weights, node.inputs[0]: taken})
        if found is None:
            return None
        (taken,) = found.values()
    numbers = [sizes[place] for place in taken.reshape(-1)]
    if not all(isinstance(size, int) for size in numbers):
        return None
    return {node.outputs[0]: np.array(numbers, np.int64).reshape(taken.shape)}


def _is_foldable(draft: Draft, node: Node, left_bytes: int) -> bool:
    if node.operator in RANDOM or node.domain or not node.inputs or node.bodies:
        return False
    arrays = [draft.weights[name] for name in node.inputs if name in draft.weights]
    if len(arrays) != sum(map(bool, node.inputs)):
        return False
    limit = max(FREE_BYTES, GROWTH * sum(array.nbytes for array in arrays))
    limit = min(limit, max(left_bytes, 0))
    return all(_bytes_of(draft, name) <= limit for name in node.outputs if name)


def _bytes_of(draft: Draft, name: str) -> float:
    """Of a value to come; infinite where the types do not tell."""
    kind = draft.type_of(name)
    if kind.container is not ContainerKind.TENSOR or not kind.is_static:
        return float("inf")
    if kind.dtype is None or kind.dtype == "string":
        return float("inf")
    sizes = [size for size in kind.shape or () if isinstance(size, int)]
    return prod(sizes) * dtype_of_name(kind.dtype).itemsize


def _evaluate(node: Node, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
    """The node's outputs by name; None where the reference cannot compute them."""
    inputs = {name: values[name] for name in node.inputs if name}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # constant NaN or infinity is the model's affair
            results = evaluator_of(node).run(None, inputs)
    except Exception:  # noqa: BLE001 - an operator that fails here fails at run time, if ever
        return None
    made = zip(node.outputs, results, strict=True)
    return {name: np.require(result, requirements="C") for name, result in made if name}
