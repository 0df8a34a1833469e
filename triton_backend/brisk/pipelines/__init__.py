"""Pipeline entries: what a ``pipeline.json`` says, read strictly and checked against its networks.

Standard library only: Triton's stub reads it as well as the runtime.
"""

from brisk.pipelines.description import (
    NodeDescription,
    NodeSource,
    PipelineDescription,
    is_pipeline,
    read_pipeline,
)
from brisk.pipelines.signature import NetworkSignature, Origin, TensorType, check_networks

__all__ = [
    "NetworkSignature",
    "NodeDescription",
    "NodeSource",
    "Origin",
    "PipelineDescription",
    "TensorType",
    "check_networks",
    "is_pipeline",
    "read_pipeline",
]
