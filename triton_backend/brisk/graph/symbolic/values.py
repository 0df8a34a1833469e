"""Elements of small integer tensors: shape arithmetic followed symbolically."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from brisk.graph.draft import Draft
from brisk.graph.program import Dimension, Node
from brisk.graph.rewriting import optional_input
from brisk.graph.symbolic.dimensions import product, quotient, total

_LONGEST = 16


def known_elements(draft: Draft, name: str) -> tuple[Dimension, ...] | None:
    """The elements of a scalar or vector of integers, names among them; None if unknown."""
    array = draft.weights.get(name)
    if array is None:
        return draft.values.get(name)
    if array.dtype.kind not in "iu" or array.ndim > 1 or array.size > _LONGEST:
        return None
    return tuple(int(item) for item in array.reshape(-1))


def _numbers(draft: Draft, name: str) -> list[int] | None:
    elements = known_elements(draft, name)
    if elements is None or not all(isinstance(item, int) for item in elements):
        return None
    return [item for item in elements if isinstance(item, int)]


def elements_of(node: Node, draft: Draft) -> tuple[Dimension, ...] | None:
    """What is known of the elements of ``node``'s first output."""
    if not node.inputs:
        return None
    if node.operator == "Shape":
        return _shape(node, draft)
    kind = draft.type_of(node.outputs[0])
    if kind.dtype not in ("int64", "int32") or kind.rank is None or kind.rank > 1:
        return None
    if node.operator == "Size":
        shape = draft.type_of(node.inputs[0]).shape
        size = None if shape is None else product(shape)
        return None if size is None else (size,)
    operands = [known_elements(draft, name) for name in node.inputs if name]
    if not operands or operands[0] is None:
        return None
    first = operands[0]
    operator = node.operator
    if operator in ("Squeeze", "Unsqueeze", "Identity", "Cast", "Reshape"):
        return first
    if operator == "Gather":
        places = _numbers(draft, node.inputs[1])
        fits = places is not None and all(-len(first) <= place < len(first) for place in places)
        return tuple(first[place] for place in places) if fits and places is not None else None
    if operator == "Slice":
        return _slice(node, draft, first)
    if operator == "Concat":
        parts = [item for operand in operands if operand is not None for item in operand]
        return tuple(parts) if None not in operands and len(parts) <= _LONGEST else None
    return _arithmetic(operator, operands)


def _shape(node: Node, draft: Draft) -> tuple[Dimension, ...] | None:
    shape = draft.type_of(node.inputs[0]).shape
    if shape is None or any(size is None for size in shape):
        return None
    start, end = node.attributes.get("start", 0), node.attributes.get("end", None)
    assert isinstance(start, int)
    assert end is None or isinstance(end, int)
    return shape[start:end]


def _slice(node: Node, draft: Draft, first: tuple[Dimension, ...]) -> tuple[Dimension, ...] | None:
    starts, ends = _numbers(draft, node.inputs[1]), _numbers(draft, node.inputs[2])
    step_name = optional_input(node, 4)
    steps = _numbers(draft, step_name) if step_name else [1]
    if not starts or not ends or not steps or steps[0] == 0:
        return None
    end: int | None = ends[0]
    if steps[0] < 0 and ends[0] < -len(first):
        end = None
    return first[starts[0] : end : steps[0]]


def _arithmetic(
    operator: str, operands: Sequence[tuple[Dimension, ...] | None]
) -> tuple[Dimension, ...] | None:
    if len(operands) != 2 or operands[0] is None or operands[1] is None:
        return None
    one, other = operands[0], operands[1]
    length = max(len(one), len(other))
    if {len(one), len(other)} - {1, length}:
        return None
    pairs = zip(
        one * (length if len(one) == 1 else 1),
        other * (length if len(other) == 1 else 1),
        strict=True,
    )
    combine = {"Mul": product, "Add": total}.get(operator)
    if combine is not None:
        results = [combine(pair) for pair in pairs]
    elif operator == "Div":
        results = [quotient(*pair) for pair in pairs]
    elif operator == "Sub":
        results = [a - b if isinstance(a, int) and isinstance(b, int) else None for a, b in pairs]
    else:
        return None
    return None if None in results else tuple(results)


def as_array(draft: Draft, name: str) -> np.ndarray | None:
    """The whole value as an array where every element is a number."""
    elements = draft.values.get(name)
    kind = draft.type_of(name)
    if elements is None or not all(isinstance(item, int) for item in elements):
        return None
    if kind.dtype not in ("int64", "int32") or kind.rank not in (0, 1):
        return None
    array = np.array(elements, kind.dtype)
    return array.reshape(()) if kind.rank == 0 else array
