"""Small models as text, with weights given as arrays."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper, parser

FLOAT = np.float32


def model(graph: str, opset: int = 18, **weights: np.ndarray) -> onnx.ModelProto:
    """``graph`` in ONNX's text form (``g (float[N,3] x) => (float[N,3] y) {y = Relu(x)}``)."""
    text = f'<ir_version: 10, opset_import: ["" : {opset}]>\n{graph}'
    parsed = parser.parse_model(text)
    for name, array in weights.items():
        parsed.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return parsed


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(FLOAT)


def positive(*shape: int, seed: int = 0) -> np.ndarray:
    return np.abs(random(*shape, seed=seed)) + FLOAT(0.5)


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def scalar(value: float) -> np.ndarray:
    return np.array(value, FLOAT)
