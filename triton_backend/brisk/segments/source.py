"""The segments of a model, and the sources of their sessions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from brisk.artefacts import content
from brisk.errors import InvalidModelError
from brisk.graph.program import Variable
from brisk.paths import Stamp
from brisk.segments.onnxruntime import OrtSession


@dataclass(frozen=True, slots=True)
class SegmentSpec:
    """A segment's place in its model."""

    index: int
    inputs: tuple[str, ...]
    """The names of the values that enter it, in order."""
    outputs: tuple[str, ...]
    """The names of the values that leave it, in order."""
    dead: tuple[str, ...]
    """The values that nothing behind it reads."""
    words: str
    """A description of the segment by its first and last node."""


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """A model's inputs, outputs and segments."""

    name: str
    inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]
    segments: tuple[SegmentSpec, ...]
    defaults: Mapping[str, np.ndarray] = field(default_factory=dict)
    """The values of inputs that a request may leave out, by name."""
    fixed: tuple[Variable, ...] = ()
    """The inputs that have a default in the model's file and take nothing else here."""


class FileBytes(NamedTuple):
    path: Path
    offset: int
    size: int


class RowTable(NamedTuple):
    """A weight of which a run reads only some rows."""

    ids: str
    """The input that numbers the rows."""
    place: FileBytes
    rows: int
    """The number of rows, of equal size, in ``place``."""


class Source(ABC):
    """Makes the sessions of one model's segments. Thread-safe."""

    plan: SegmentPlan
    origin: str
    """The name of what it reads: ``model`` or ``artefact``."""
    weight_bytes: int
    """The size of the files that it maps."""
    made_of: Mapping[str, Stamp]
    """Every file of the model, in the state in which it was read: ``content.stamps`` of it."""
    wants_artefact = False
    """Whether a prepared form would serve the model better."""
    is_uncut = False
    """Whether it is one segment, the unchanged file of a model that cannot be cut."""
    remark = ""
    """A remark for the log on how the model is served, if that is unusual."""

    @property
    def own_stamp(self) -> Stamp:
        """The stamp of the model's own file."""
        return self.made_of[content.ITSELF]

    def is_of(self, model: Path, present: Mapping[str, Stamp] | None = None) -> bool:
        """Whether the files of the model at ``model`` are still those that were read.

        ``present``: their stamps, as taken before. False if one of them is missing, was replaced
        or written to. Raises OSError if one cannot be read.
        """
        try:
            present = content.stamps(model, self.made_of) if present is None else present
            return content.is_same_content(model, self.made_of, present)
        except (FileNotFoundError, InvalidModelError):
            return False

    def reads(self, index: int) -> Sequence[FileBytes]:
        """Return the bytes of its files that ``open`` of a segment reads; they may still be
        arriving."""
        return ()

    def defer_tables(self, index: int, wait: Callable[[], None]) -> Sequence[RowTable]:
        """Defer a segment's tables: return those whose bytes its ``open`` does not read from now
        on.

        A run then needs the rows that it reads. ``wait`` returns when all are here, for an opening
        that has to read them after all; it may raise UnavailableError. To be called before the
        segment is opened.
        """
        return ()

    def make_ahead(self, index: int) -> None:  # noqa: B027  # some have nothing to make
        """Make the parts of a segment's session that need no weights, so that ``open`` takes less
        when these are here. Raises nothing: ``open`` makes what cannot be made ahead."""

    @abstractmethod
    def open(self, index: int) -> OrtSession:
        """Open the session that starts cheapest (NNV12, 3.1: the cold solution). Raises
        BriskError."""

    @abstractmethod
    def open_warm(self, index: int) -> OrtSession | None:
        """Open the session that runs fastest; None: the first one does. Raises BriskError."""

    def close(self) -> None:  # noqa: B027  # some have nothing to release
        """Release what only opening needs: nothing is opened any more."""
