"""Brisk's own fused operators: ``layer.main`` with domain ``brisk``.

``Linear(x, weight, bias="")``
    ``x @ weight + bias`` over the last axis of ``x`` (rank 2 or more); ``weight`` is a
    constant ``[k, n]``, ``bias`` a constant ``[n]`` or left out.
``Attention(query, key, value, mask="")``
    ``softmax(scale · query @ keyᵀ + mask) @ value``; all four-dimensional ``[batch, heads,
    length, size]``, ``mask`` broadcasts to ``[batch, heads, queries, keys]``. Attributes:
    ``scale`` (float) and ``zero_masked_rows`` (int): 1 where rows of weights that are NaN
    (all keys masked by minus infinity) count as zero.
``SelfAttention(x, weight, bias, weight, bias, weight, bias, mask="")``
    ``x [batch, length, k]`` times the constant weights ``[k, heads · size]`` of query, key and
    value, plus their biases (or ``""``), rows divided into heads; ``Attention`` of these, heads
    side by side again: ``[batch, length, heads · size]``. Attributes: ``heads`` (int), and those
    of ``Attention``.
``DynamicQuantizedLinear(x, weight, weight_scale, weight_zero_point="", bias="")``
    ``x`` is quantised to uint8 as DynamicQuantizeLinear does, multiplied by the constant int8
    or uint8 ``weight [k, n]`` and scaled back to float; ``weight_scale`` and
    ``weight_zero_point`` are scalars or ``[n]``, ``bias`` is ``[n]``.

Other fusions use the ONNX operator that means the same: ``LayerNormalization``,
``RMSNormalization``, ``Gelu``, ``Swish``, ``HardSwish``, ``HardSigmoid``.
"""

from __future__ import annotations

from brisk.graph.program import Attribute, Node

DOMAIN = "brisk"
LINEAR = "Linear"
ATTENTION = "Attention"
SELF_ATTENTION = "SelfAttention"
DYNAMIC_QUANTIZED_LINEAR = "DynamicQuantizedLinear"


def fused(
    operator: str,
    inputs: tuple[str, ...],
    outputs: tuple[str, ...],
    name: str,
    **attributes: Attribute,
) -> Node:
    """A node of Brisk's own operator set."""
    return Node(operator, inputs, outputs, attributes, DOMAIN, 1, name)
