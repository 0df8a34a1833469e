"""What a starting program asks for its layers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

from brisk.execution.joining import JoinedLayers
from brisk.execution.loaded_layer import LoadedLayer
from brisk.execution.loading import FramePlan


class LayerSource(ABC):
    """Loads the layers of one program, each with its cold or its warm solution. Thread-safe."""

    frame: FramePlan
    is_given_up: bool = False
    """Whether it turned out to be damaged and the model is used in its place."""

    @abstractmethod
    def load(self, index: int, lane: str, stolen: bool) -> LoadedLayer:
        """The layer with its cold solution. Raises BriskError."""

    @abstractmethod
    def solution_names(self) -> list[str]:
        """The warm solution of each layer."""

    @abstractmethod
    def has_skipped(self) -> bool:
        """Whether the program starts with substitutes for warm solutions (PASK VI)."""

    @abstractmethod
    def warm_layers(self) -> list[int]:
        """Layers whose warm solution is not what the program starts with: substituted ones, and
        what only larger batches, exits or whole tables need.
        """

    @abstractmethod
    def load_warm(self, index: int) -> LoadedLayer:
        """The layer with its warm solution. Raises BriskError."""

    @abstractmethod
    def join(
        self, layers: Sequence[LoadedLayer], cuts: Collection[int] = ()
    ) -> JoinedLayers | None:
        """The layers, all of them, with runs of small ones joined; None: nothing to join.

        ``cuts`` as in ``drawn_runs``.
        """
