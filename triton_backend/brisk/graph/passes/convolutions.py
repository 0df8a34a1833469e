"""Folds what scales and shifts the channels behind a convolution into its weights.

``f·(W x + b) + s`` is the same convolution with weights ``f·W`` and bias ``f·b + s``. A
BatchNormalization has ``f = scale / sqrt(variance + epsilon)`` and ``s = shift - f·mean``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from brisk.graph.draft import Draft, is_standard
from brisk.graph.program import Node


def fold_into_convolutions(draft: Draft) -> None:
    for node in draft:
        for source in node.inputs[:2] if is_standard(node, *_FOLDED) else ():
            conv = draft.maker(source, "Conv")
            if conv.operator and draft.is_read_once(source):
                folded = _folded(draft, conv, node, source)
                if folded is not None:
                    draft.fuse(node, [conv], folded)
                    break


_FOLDED = ("BatchNormalization", "Mul", "Add")


def _folded(draft: Draft, conv: Node, node: Node, source: str) -> Node | None:
    """The convolution that makes what ``node`` does; None where something is no constant."""
    weight, bias = draft.weights.get(conv.inputs[1]), draft.weights.get(conv.input(2))
    if weight is None or weight.dtype.kind != "f" or (bias is None and conv.input(2)):
        return None
    constants = [draft.weights.get(name) for name in node.inputs if name != source]
    factor: np.ndarray | None = None
    shift: np.ndarray | None = None
    if is_standard(node, "BatchNormalization"):
        if any(node.outputs[1:]) or node.integer("training_mode", 0):
            return None
        scale, shift, mean, variance = (_by_channel(weight, array, 1) for array in constants)
        if scale is None or shift is None or mean is None or variance is None:
            return None
        epsilon = np.asarray(node.number("epsilon", 1e-5), variance.dtype)
        factor = scale / np.sqrt(variance + epsilon)
        shift = shift - mean * factor
    else:
        values = _by_channel(weight, constants[0], weight.ndim) if constants else None
        if values is None or values.dtype != weight.dtype:
            return None
        if is_standard(node, "Add"):
            shift = values
        else:
            factor = values
    target, weight_name = node.outputs[0], conv.inputs[1]
    moved = np.zeros(len(weight), weight.dtype) if bias is None else bias
    if factor is not None:
        factor = factor.astype(weight.dtype)
        scaled = weight * factor.reshape(-1, *[1] * (weight.ndim - 1))
        weight_name = draft.add_weight(scaled, f"{target}.weight")
        moved = moved * factor
    if shift is not None:
        moved = moved + shift.astype(weight.dtype)
    bias_name = draft.add_weight(moved, f"{target}.bias")
    return replace(conv, inputs=(conv.inputs[0], weight_name, bias_name), outputs=(target,))


def _by_channel(weight: np.ndarray, array: np.ndarray | None, rank: int) -> np.ndarray | None:
    """The constant as ``[channels]`` of a convolution's result; None where it varies otherwise.

    ``rank``: of the result that it broadcasts with; 1 where it is stated by channel.
    """
    if array is None or array.ndim > rank:
        return None
    axis = min(rank - 1, 1)
    shape = (1,) * (rank - array.ndim) + array.shape
    if shape[axis] not in (1, len(weight)) or array.size != shape[axis]:
        return None
    return np.broadcast_to(array.reshape(-1), (len(weight),))
