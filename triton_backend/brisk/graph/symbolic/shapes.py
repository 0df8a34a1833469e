"""Sizes of results by name, for the operators after which they would be lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from brisk.graph.attributes import integer, integers
from brisk.graph.draft import Draft
from brisk.graph.program import Dimension, Node
from brisk.graph.rewriting import optional_input
from brisk.graph.symbolic.dimensions import broadcast, product, quotient, total
from brisk.graph.symbolic.values import known_elements
from brisk.graph.symbolic.windowed import convolution, pooling, transposed_convolution

Sizes: TypeAlias = "tuple[Dimension, ...] | None"
Rule: TypeAlias = Callable[[Node, Draft, tuple[Dimension, ...]], Sizes]

_ELEMENTWISE = frozenset(
    {
        *("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Mean", "Sum", "Mod", "PRelu"),
        *("And", "Or", "Xor", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
        *("Where", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift"),
    }
)
_LIKE_FIRST = frozenset(
    {
        *("Abs", "BatchNormalization", "Cast", "Ceil", "Celu", "Clip", "CumSum", "Elu", "Erf"),
        *("Exp", "Floor", "Gelu", "GroupNormalization", "HardSigmoid", "HardSwish", "Identity"),
        *("InstanceNormalization", "IsInf", "IsNaN", "LRN", "LayerNormalization", "LeakyRelu"),
        *("Log", "LogSoftmax", "Mish", "Neg", "Not", "QuantizeLinear", "DequantizeLinear"),
        *("RMSNormalization", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin"),
        *("Softmax", "Softplus", "Softsign", "Sqrt", "Swish", "Tanh", "Trilu", "Cos", "Dropout"),
        *("CastLike", "DynamicQuantizeLinear"),
    }
)


def sizes_of(node: Node, draft: Draft) -> dict[str, tuple[Dimension, ...]]:
    """The sizes of ``node``'s first output where a rule here knows them."""
    if not node.inputs or not node.outputs[0]:
        return {}
    if node.operator in _ELEMENTWISE:
        sizes = _broadcast([draft.type_of(name).shape for name in node.inputs])
    else:
        first = draft.type_of(node.inputs[0]).shape
        rule = _RULES.get(node.operator)
        if first is None:
            return {}
        sizes = first if node.operator in _LIKE_FIRST else rule and rule(node, draft, first)
    return {} if sizes is None else {node.outputs[0]: sizes}


def demanded_rank(node: Node, draft: Draft) -> int | None:
    """The rank that the first input must have for ``node`` to be valid."""
    if node.operator in ("Conv", "ConvTranspose"):
        return draft.type_of(node.inputs[1]).rank
    return {"LSTM": 3, "GRU": 3, "RNN": 3, "Gemm": 2}.get(node.operator)


def _broadcast(shapes: Sequence[Sizes]) -> Sizes:
    known = [shape for shape in shapes if shape is not None]
    if len(known) != len(shapes):
        return None
    rank = max(len(shape) for shape in known)
    aligned = [(1,) * (rank - len(shape)) + shape for shape in known]
    return tuple(broadcast(column) for column in zip(*aligned, strict=True))


def _transpose(node: Node, draft: Draft, first: tuple[Dimension, ...]) -> Sizes:
    order = integers(node, "perm") or tuple(reversed(range(len(first))))
    return tuple(first[axis] for axis in order)


def _reshape(node: Node, draft: Draft, first: tuple[Dimension, ...]) -> Sizes:
    wanted = known_elements(draft, node.inputs[1])
    if wanted is None:
        return None
    copied = not node.attributes.get("allowzero", 0)
    sizes = [
        first[axis] if size == 0 and copied and axis < len(first) else size
        for axis, size in enumerate(wanted)
    ]
    if -1 in sizes:
        place = sizes.index(-1)
        others = product(size for size in [*sizes[:place], *sizes[place + 1 :]])
        sizes[place] = quotient(product(first), others)
    return tuple(sizes)


def _expand(node: Node, draft: Draft, first: tuple[Dimension, ...]) -> Sizes:
    wanted = known_elements(draft, node.inputs[1])
    return None if wanted is None else _broadcast([first, wanted])


def _flatten(node: Node, draft: Draft, first: tuple[Dimension, ...]) -> Sizes:
    axis = integer(node, "axis", 1)
    axis = axis + len(first) if axis < 0 else axis
    return product(first[:axis]), product(first[axis:])


def _axes(node: Node, draft: Draft, rank: int, position: int = 1) -> list[int] | None:
    elements = known_elements(draft, optional_input(node, position))
    if elements is None:
        return None
    return sorted(int(axis) % rank for axis in elements if isinstance(axis, int))


def _squeeze(node: Node, draft: Draft, first: tuple[Dimension, ...]) -> Sizes:
    axes = _axes(node, draft, len(first)) if len(node.inputs) > 1 else None
    if axes is None:
        return None
    return tuple(size for axis, size in enumerate(first) if axis not in axes)


def _unsqueeze(node: Node, draft: Draft, first: tuple[Dimension, ...]) -> Sizes:
    count = known_elements(draft, node.inputs[1])
    axes = None if count is None else _axes(node, draft, len(first) + len(count))
    if axes is None:
        return None
    sizes = list(first)
    for axis in axes:
        sizes.insert(axis, 1)
    return tuple(sizes)


def _reduce(node: Node, draft: Draft, first: tuple[Dimension, ...]) -> Sizes:
    axes = _axes(node, draft, len(first)) if len(node.inputs) > 1 else list(range(len(first)))
    if axes is None or (not axes and not node.attributes.get("noop_with_empty_axes", 0)):
        return None
    if node.attributes.get("keepdims", 1):
        return tuple(1 if axis in axes else size for axis, size in enumerate(first))
    return tuple(size for axis, size in enumerate(first) if axis not in axes)


def _concat(node: Node, draft: Draft, first: tuple[Dimension, ...]) -> Sizes:
    shapes = [draft.type_of(name).shape for name in node.inputs]
    known = [shape for shape in shapes if shape is not None and len(shape) == len(first)]
    if len(known) != len(shapes):
        return None
    along = integer(node, "axis", 0) % len(first)
    return tuple(
        total(column) if axis == along else next((size for size in column if size), None)
        for axis, column in enumerate(zip(*known, strict=True))
    )


def _matmul(node: Node, draft: Draft, first: tuple[Dimension, ...]) -> Sizes:
    second = draft.type_of(node.inputs[1]).shape
    if second is None or len(first) < 2 or len(second) < 2:
        return None
    batch = _broadcast([first[:-2], second[:-2]])
    return None if batch is None else (*batch, first[-2], second[-1])


def _gemm(node: Node, draft: Draft, first: tuple[Dimension, ...]) -> Sizes:
    second = draft.type_of(node.inputs[1]).shape
    if second is None or len(first) != 2 or len(second) != 2:
        return None
    rows = first[1 if node.attributes.get("transA", 0) else 0]
    return rows, second[0 if node.attributes.get("transB", 0) else 1]


def _gather(node: Node, draft: Draft, first: tuple[Dimension, ...]) -> Sizes:
    places = draft.type_of(node.inputs[1]).shape
    axis = integer(node, "axis", 0) % max(len(first), 1)
    return None if places is None else (*first[:axis], *places, *first[axis + 1 :])


def _untouched(node: Node, draft: Draft, first: tuple[Dimension, ...]) -> Sizes:
    """Slice, Pad: the axes that are not named keep their size."""
    position = 3
    name = optional_input(node, position)
    axes = _axes(node, draft, len(first), position) if name else None
    if axes is None:
        return None
    return tuple(None if axis in axes else size for axis, size in enumerate(first))


def _slice(node: Node, draft: Draft, first: tuple[Dimension, ...]) -> Sizes:
    """Sizes cut by numbers are numbers; where something else decides, as ``_untouched``."""
    bounds = [known_elements(draft, name) for name in node.inputs[1:] if name]
    if None in bounds or len(bounds) != len(node.inputs) - 1:
        return _untouched(node, draft, first)
    starts, ends, *more = [each for each in bounds if each is not None]
    axes = more[0] if more else tuple(range(len(starts)))
    steps = more[1] if len(more) > 1 else (1,) * len(starts)
    sizes = list(first)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        place = int(axis) % len(first) if isinstance(axis, int) else 0
        size = first[place]
        numbers = (axis, start, end, step, size)
        if not all(isinstance(number, int) for number in numbers) or int(step or 0) < 1:
            return _untouched(node, draft, first)
        low, high, _ = slice(start, end, step).indices(int(size or 0))
        sizes[place] = len(range(low, high, int(step or 1)))
    return tuple(sizes)


def _resize(node: Node, draft: Draft, first: tuple[Dimension, ...]) -> Sizes:
    if node.attributes.get("axes") is not None:
        return None
    sizes = known_elements(draft, optional_input(node, 3))
    if sizes is not None:
        return sizes
    scales = draft.weights.get(optional_input(node, 2))
    if scales is None or scales.size != len(first):
        return None
    return tuple(
        product((int(scale), size)) if float(scale).is_integer() else None
        for scale, size in zip(scales, first, strict=True)
    )


def _global_pool(node: Node, draft: Draft, first: tuple[Dimension, ...]) -> Sizes:
    return (*first[:2], *[1] * (len(first) - 2))


_RULES: dict[str, Rule] = {
    "Transpose": _transpose,
    "Reshape": _reshape,
    "Expand": _expand,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Concat": _concat,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Gather": _gather,
    "Slice": _slice,
    "Pad": _untouched,
    "Resize": _resize,
    "Conv": convolution,
    "ConvTranspose": transposed_convolution,
    "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": _global_pool,
    "MaxPool": pooling,
    "AveragePool": pooling,
    **{
        f"Reduce{kind}": _reduce
        for kind in ("Mean", "Sum", "Max", "Min", "Prod", "L1", "L2", "SumSquare", "LogSumExp")
    },
}
