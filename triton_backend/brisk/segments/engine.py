"""Which engine a deployment wants its models computed by."""

from __future__ import annotations

from enum import Enum


class Engine(str, Enum):
    """``BRISK``: kernels of Brisk's own. ``ONNX_RUNTIME``: its sessions, by segments.

    ``AUTO``: Brisk's own, unless they are known to be slow on a model, or lack an operator.
    """

    AUTO = "auto"
    BRISK = "brisk"
    ONNX_RUNTIME = "onnxruntime"
