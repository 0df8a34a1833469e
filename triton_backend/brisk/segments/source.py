"""A model as segments, and where their sessions come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from brisk.graph.program import Variable
from brisk.paths import Stamp
from brisk.segments.onnxruntime import OrtSession


@dataclass(frozen=True, slots=True)
class SegmentSpec:
    """``inputs``, ``outputs``: names of the values that cross its borders, in order.

    ``dead``: values that nothing behind it reads. ``words``: its first and last node.
    """

    index: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    dead: tuple[str, ...]
    words: str


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """``defaults``: of inputs that a request may leave out, by name. ``fixed``: inputs that have a
    default in the model's file and take nothing else here.
    """

    name: str
    inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]
    segments: tuple[SegmentSpec, ...]
    defaults: Mapping[str, np.ndarray] = field(default_factory=dict)
    fixed: tuple[Variable, ...] = ()


class FileBytes(NamedTuple):
    path: Path
    offset: int
    size: int


class RowTable(NamedTuple):
    """A weight of which a run reads the rows that the input ``ids`` numbers, and nothing else
    does anything. ``rows``: how many of equal size ``place`` holds."""

    ids: str
    place: FileBytes
    rows: int


class Source(ABC):
    """Makes the sessions of one model's segments. Thread-safe."""

    plan: SegmentPlan
    origin: str
    """What it reads: ``model`` or ``artefact``."""
    weight_bytes: int
    """Of the files that it maps."""
    made_of: Mapping[str, Stamp]
    """Every file of the model, in the state in which it was read: ``content.stamps`` of it."""
    wants_artefact = False
    """Whether a prepared form would serve the model better."""
    remark = ""
    """What is unusual about how it is served, for its log."""

    def reads(self, index: int) -> Sequence[FileBytes]:
        """What of its files ``open`` of a segment reads, for files that may still be arriving."""
        return ()

    def defer_tables(self, index: int, wait: Callable[[], None]) -> Sequence[RowTable]:
        """Tables whose bytes ``open`` of a segment does not read from now on: a run needs the
        rows that it asks for. ``wait``: until all are here, for an opening that has to read them
        after all; it may raise UnavailableError. To be called before the segment is opened.
        """
        return ()

    def make_ahead(self, index: int) -> None:  # noqa: B027  # some have nothing to make
        """Make of a segment what none of its weights is read for, so that ``open`` takes less when
        they are here. Raises nothing: what cannot be made is made by ``open``."""

    @abstractmethod
    def open(self, index: int) -> OrtSession:
        """What starts cheapest (NNV12, 3.1: the cold solution). Raises BriskError."""

    @abstractmethod
    def open_warm(self, index: int) -> OrtSession | None:
        """What runs fastest; None where that is the first one. Raises BriskError."""

    def close(self) -> None:  # noqa: B027  # some have nothing to let go of
        """Let go of what only opening needs: nothing is opened any more."""
