"""Small models as text, with weights given as arrays."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import numpy_helper, parser


def model(graph: str, opset: int = 18, **weights: np.ndarray) -> onnx.ModelProto:
    """``graph`` in ONNX's text form (``g (float[N,3] x) => (float[N,3] y) {y = Relu(x)}``)."""
    text = f'<ir_version: 10, opset_import: ["" : {opset}]>\n{graph}'
    parsed = parser.parse_model(text)
    for name, array in weights.items():
        parsed.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return parsed
