"""A network of a few layers of each kind that models are made of, for ``practise``."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import numpy_helper

_TEXT = """
<ir_version: 8, opset_import: ["" : 17]>
p (float[1,3,64,64] image, int64[1,32] words) => (float[1,256] seen, float[1,32,192] said)
{
    edges = Conv <kernel_shape=[3,3], pads=[1,1,1,1], strides=[2,2]> (image, edge)
    scaled = BatchNormalization (edges, scale32, shift32, shift32, scale32)
    lit = Relu (scaled)
    shapes = Conv <kernel_shape=[3,3], pads=[1,1,1,1]> (lit, shape, shift32)
    bold = Relu (shapes)
    small = MaxPool <kernel_shape=[3,3], pads=[1,1,1,1], strides=[2,2]> (bold)
    parts = Conv <kernel_shape=[3,3], pads=[1,1,1,1]> (small, part, shift128)
    kept = Relu (parts)
    mixed = Conv <kernel_shape=[1,1]> (kept, mix, shift128)
    joined = Add (mixed, kept)
    whole = Relu (joined)
    apart = Conv <kernel_shape=[3,3], pads=[1,1,1,1], strides=[2,2], group=128> (whole, one_each)
    gate = Sigmoid (apart)
    gated = Mul (apart, gate)
    mean = GlobalAveragePool (gated)
    less = Conv <kernel_shape=[1,1]> (mean, squeeze, shift16)
    few = Relu (less)
    more = Conv <kernel_shape=[1,1]> (few, excite, shift128)
    weighed = Sigmoid (more)
    chosen = Mul (gated, weighed)
    large = ConvTranspose <kernel_shape=[2,2], strides=[2,2]> (chosen, widen)
    both = Concat <axis=1> (large, whole)
    summary = GlobalAveragePool (both)
    flat = Flatten (summary)
    seen = Gemm (flat, classify, shift256)
    found = Gather (table, words)
    placed = Add (found, places)
    normal = LayerNormalization <axis=-1> (placed, scale192, shift192)
    q0 = MatMul (normal, query)
    q1 = Add (q0, shift192)
    q2 = Reshape (q1, split)
    q3 = Transpose <perm=[0,2,1,3]> (q2)
    k0 = MatMul (normal, key)
    k1 = Add (k0, shift192)
    k2 = Reshape (k1, split)
    k3 = Transpose <perm=[0,2,3,1]> (k2)
    v0 = MatMul (normal, value)
    v1 = Add (v0, shift192)
    v2 = Reshape (v1, split)
    v3 = Transpose <perm=[0,2,1,3]> (v2)
    scores = MatMul (q3, k3)
    even = Div (scores, eight)
    shares = Softmax <axis=-1> (even)
    heads = MatMul (shares, v3)
    turned = Transpose <perm=[0,2,1,3]> (heads)
    merged = Reshape (turned, merge)
    out = MatMul (merged, project)
    biased = Add (out, shift192)
    residual = Add (biased, normal)
    middle = LayerNormalization <axis=-1> (residual, scale192, shift192)
    wide = MatMul (middle, expand)
    wider = Add (wide, shift768)
    halved = Div (wider, root)
    bent = Erf (halved)
    lifted = Add (bent, one)
    curved = Mul (wider, lifted)
    gelu = Mul (curved, half)
    narrow = MatMul (gelu, shrink)
    narrower = Add (narrow, shift192)
    said = Add (narrower, middle)
}
"""

_SHAPES: Mapping[str, tuple[int, ...]] = {
    "edge": (32, 3, 3, 3),
    "shape": (32, 32, 3, 3),
    "part": (128, 32, 3, 3),
    "mix": (128, 128, 1, 1),
    "one_each": (128, 1, 3, 3),
    "squeeze": (16, 128, 1, 1),
    "excite": (128, 16, 1, 1),
    "widen": (128, 64, 2, 2),
    "classify": (192, 256),
    "table": (100, 192),
    "places": (32, 192),
    **dict.fromkeys(("query", "key", "value", "project"), (192, 192)),
    "expand": (192, 768),
    "shrink": (768, 192),
    **{f"scale{size}": (size,) for size in (32, 192)},
    **{f"shift{size}": (size,) for size in (16, 32, 128, 192, 256, 768)},
}

_NUMBERS: Mapping[str, float] = {"eight": 8.0, "root": 2.0**0.5, "one": 1.0, "half": 0.5}


def build_practice() -> onnx.ModelProto:
    """Convolutions, a transposed one, pooling, attention, normalisations and linear layers."""
    model = onnx.parser.parse_model(_TEXT)
    arrays = {name: np.full(shape, 0.01, np.float32) for name, shape in _SHAPES.items()}
    arrays |= {name: np.array(number, np.float32) for name, number in _NUMBERS.items()}
    arrays |= {"split": np.array([1, 32, 6, 32]), "merge": np.array([1, 32, 192])}
    tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    model.graph.initializer.extend(tensors)
    return model


def practice_inputs() -> dict[str, np.ndarray]:
    """A request for it."""
    image = np.zeros((1, 3, 64, 64), np.float32)
    return {"image": image, "words": np.zeros((1, 32), np.int64)}
