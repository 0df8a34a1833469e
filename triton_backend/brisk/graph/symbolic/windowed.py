"""Sizes after convolutions and poolings, by name."""

from __future__ import annotations

from brisk.graph.attributes import integer, integers
from brisk.graph.draft import Draft
from brisk.graph.program import Dimension, Node
from brisk.graph.symbolic.dimensions import product, shifted, windows


def _spatial(
    node: Node, spatial: tuple[Dimension, ...], kernel: tuple[int, ...]
) -> tuple[Dimension, ...] | None:
    count = len(spatial)
    if len(kernel) != count:
        return None
    strides = integers(node, "strides") or (1,) * count
    dilations = integers(node, "dilations") or (1,) * count
    pads = integers(node, "pads") or (0,) * 2 * count
    mode = node.attributes.get("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        return tuple(
            windows(size, -1, stride) for size, stride in zip(spatial, strides, strict=True)
        )
    if mode == "VALID":
        pads = (0,) * 2 * count
    up = bool(node.attributes.get("ceil_mode", 0))
    return tuple(
        windows(
            size,
            pads[axis] + pads[axis + count] - dilations[axis] * (kernel[axis] - 1) - 1,
            strides[axis],
            up,
        )
        for axis, size in enumerate(spatial)
    )


def _kernel_of_weight(node: Node, draft: Draft) -> tuple[int, ...] | None:
    shape = draft.type_of(node.inputs[1]).shape
    if shape is None or not all(isinstance(size, int) for size in shape):
        return None
    return tuple(int(size) for size in shape if size is not None)


def convolution(
    node: Node, draft: Draft, first: tuple[Dimension, ...]
) -> tuple[Dimension, ...] | None:
    weight = _kernel_of_weight(node, draft)
    if weight is None:
        return None
    spatial = _spatial(node, first[2:], weight[2:])
    return None if spatial is None else (first[0], weight[0], *spatial)


def pooling(
    node: Node, draft: Draft, first: tuple[Dimension, ...]
) -> tuple[Dimension, ...] | None:
    """``ceil_mode`` drops a last window that starts in the padding, so sizes stay open there."""
    if node.attributes.get("ceil_mode", 0):
        return None
    spatial = _spatial(node, first[2:], integers(node, "kernel_shape") or ())
    return None if spatial is None else (*first[:2], *spatial)


def transposed_convolution(
    node: Node, draft: Draft, first: tuple[Dimension, ...]
) -> tuple[Dimension, ...] | None:
    """``stride·(size - 1) + output_padding + dilation·(kernel - 1) + 1 - pads``."""
    weight = _kernel_of_weight(node, draft)
    explicit = node.attributes.get("auto_pad", "NOTSET") == "NOTSET"
    if weight is None or not explicit or "output_shape" in node.attributes:
        return None
    count = len(first) - 2
    strides = integers(node, "strides") or (1,) * count
    dilations = integers(node, "dilations") or (1,) * count
    pads = integers(node, "pads") or (0,) * 2 * count
    extra = integers(node, "output_padding") or (0,) * count
    channels = weight[1] * integer(node, "group", 1)
    spatial = tuple(
        shifted(
            product((strides[axis], size)),
            extra[axis]
            + dilations[axis] * (weight[2 + axis] - 1)
            + 1
            - strides[axis]
            - pads[axis]
            - pads[axis + count],
        )
        for axis, size in enumerate(first[2:])
    )
    return (first[0], channels, *spatial)
