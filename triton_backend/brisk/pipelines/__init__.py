"""Pipeline entries: what a ``pipeline.json`` says, read strictly and checked against its networks.

Standard library only: Triton's stub reads it as well as the runtime.
"""

from brisk.pipelines.description import (
    EarlyAnswer,
    NodeDescription,
    NodeSource,
    PipelineDescription,
    VariantDescription,
    is_pipeline,
    read_pipeline,
)
from brisk.pipelines.signature import NetworkSignature, TensorType, check_networks

__all__ = [
    "EarlyAnswer",
    "NetworkSignature",
    "NodeDescription",
    "NodeSource",
    "PipelineDescription",
    "TensorType",
    "VariantDescription",
    "check_networks",
    "is_pipeline",
    "read_pipeline",
]
