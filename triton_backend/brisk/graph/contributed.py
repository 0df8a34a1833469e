"""Operators of ONNX Runtime's own set (``com.microsoft``) that standard nodes express.

Models that ONNX Runtime has optimised and saved hold them. Source: ContribOperators.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from onnx import TensorProto

from brisk.graph.draft import Rewriting
from brisk.graph.program import Node

DOMAIN = "com.microsoft"


def _kept(node: Node, *names: str) -> dict[str, Any]:
    return {name: node.attributes[name] for name in names if name in node.attributes}


def _sum(new: Rewriting, one: str, other: str) -> str:
    """``one + other``; ``one`` where the other is left out."""
    return new.add("Add", one, other) if other else one


def _gelu(approximate: str, new: Rewriting) -> list[Node]:
    source = _sum(new, new.node.inputs[0], new.node.input(1))
    return new.into("Gelu", source, approximate=approximate)


def _quick_gelu(new: Rewriting) -> list[Node]:
    return new.into("Swish", *new.node.inputs, alpha=new.node.number("alpha", 1.702))


def _matmul(new: Rewriting) -> list[Node] | None:
    """``alpha · op(A) op(B)``, where ``op`` may swap the last two axes."""
    node = new.node
    if node.integer("transBatchA", 0) or node.integer("transBatchB", 0):
        return None
    operands = []
    for name, flag in zip(node.inputs, ("transA", "transB"), strict=True):
        if node.integer(flag, 0):
            rank = new.draft.rank(name)
            if rank is None or rank < 2:
                return None
            name = new.add("Transpose", name, perm=(*range(rank - 2), rank - 1, rank - 2))
        operands.append(name)
    if node.number("alpha", 1.0) == 1.0:
        return new.into("MatMul", *operands)
    factor = new.scalar("alpha", 1.0)
    return new.into("Mul", new.add("MatMul", *operands), factor)


def _skip_layer_normalization(new: Rewriting) -> list[Node] | None:
    """``LayerNormalization(x + skip + bias)``; the fourth output is the sum."""
    node = new.node
    if any(node.outputs[1:3]):
        return None
    whole = _sum(new, _sum(new, node.inputs[0], node.input(4)), node.inputs[1])
    if any(node.outputs[3:]):
        new.into("Identity", whole, outputs=node.outputs[3:])
    epsilon = node.number("epsilon", 1e-12)
    inputs = (whole, node.inputs[2], node.input(3))
    outputs = node.outputs[:1]
    return new.into("LayerNormalization", *inputs, outputs=outputs, axis=-1, epsilon=epsilon)


# On quantised tensors: the float operator between DequantizeLinear and QuantizeLinear. Inputs are
# groups of tensor, scale and zero point, then scale and zero point of the result.


def _quantised(
    operator: str, tensors: int, attributes: tuple[str, ...], new: Rewriting
) -> list[Node] | None:
    node = new.node
    if node.integer("channels_last", 0):
        return None
    groups = [
        (node.input(i), node.input(i + 1), node.input(i + 2)) for i in range(0, 3 * tensors, 3)
    ]
    operands = [new.add("DequantizeLinear", *group) for group in groups]
    result = new.add(operator, *operands, **_kept(node, *attributes))
    return new.into("QuantizeLinear", result, node.input(3 * tensors), node.input(3 * tensors + 1))


def _quantised_gemm(new: Rewriting) -> list[Node]:
    """``alpha · A B + C``, where C is int32 in units of both scales; float without a scale."""
    node = new.node
    columns = 0 if node.integer("transB", 0) else 1
    operands = [
        new.add("DequantizeLinear", *node.inputs[:3]),
        new.add("DequantizeLinear", *node.inputs[3:6], axis=columns),
    ]
    if node.input(6):
        floats = new.add("Cast", node.inputs[6], to=TensorProto.FLOAT)
        operands.append(new.add("Mul", floats, new.add("Mul", node.inputs[1], node.inputs[4])))
    kept = _kept(node, "alpha", "transA", "transB")
    if not node.input(7):
        return new.into("Gemm", *operands, **kept)
    return new.into("QuantizeLinear", new.add("Gemm", *operands, **kept), *node.inputs[7:9])


_POOLING = ("auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides")

CONTRIBUTED: Mapping[str, Callable[[Rewriting], list[Node] | None]] = {
    "Gelu": partial(_gelu, "none"),
    "BiasGelu": partial(_gelu, "none"),
    "FastGelu": partial(_gelu, "tanh"),
    "QuickGelu": _quick_gelu,
    "FusedMatMul": _matmul,
    "SkipLayerNormalization": _skip_layer_normalization,
    "QLinearAdd": partial(_quantised, "Add", 2, ()),
    "QLinearMul": partial(_quantised, "Mul", 2, ()),
    "QLinearSigmoid": partial(_quantised, "Sigmoid", 1, ()),
    "QLinearLeakyRelu": partial(_quantised, "LeakyRelu", 1, ("alpha",)),
    "QLinearGlobalAveragePool": partial(_quantised, "GlobalAveragePool", 1, ()),
    "QLinearAveragePool": partial(_quantised, "AveragePool", 1, _POOLING),
    "QGemm": _quantised_gemm,
}
"""By operator: nodes that mean the same; None where there are none."""
