"""Where a model's segments come from."""

from __future__ import annotations

from abc import ABC, abstractmethod

from brisk.segments.onnxruntime.session import OrtSession
from brisk.segments.plan import SegmentPlan


class Source(ABC):
    """Makes the sessions of one model's segments. Thread-safe."""

    plan: SegmentPlan
    origin: str
    """What it reads: ``model`` or ``artefact``."""
    weight_bytes: int
    """Of the files that it maps."""
    wants_artefact = False
    """Whether a prepared form would serve the model better."""
    is_optimised_elsewhere = False
    """Whether it is a model in ONNX Runtime's own format (``.ort``)."""

    @abstractmethod
    def open(self, index: int) -> OrtSession:
        """What starts cheapest (NNV12, 3.1: the cold solution). Raises BriskError."""

    @abstractmethod
    def open_warm(self, index: int) -> OrtSession | None:
        """What runs fastest; None where that is the first one. Raises BriskError."""

    def close(self) -> None:  # noqa: B027  # some have nothing to let go of
        """Let go of what only opening needs: nothing is opened any more."""
