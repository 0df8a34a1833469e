"""Pipeline entries: their ``pipeline.json``, read strictly and checked against their networks.

Standard library only: Triton's stub reads it as well as the runtime.
"""

from brisk.pipelines.description import (
    NodeDescription,
    NodeSource,
    PipelineDescription,
    read_pipeline,
)
from brisk.pipelines.signature import check_networks
from brisk.protocol.entry_files import is_pipeline
from brisk.protocol.signature import NetworkSignature, TensorType

__all__ = [
    "NetworkSignature",
    "NodeDescription",
    "NodeSource",
    "PipelineDescription",
    "TensorType",
    "check_networks",
    "is_pipeline",
    "read_pipeline",
]
