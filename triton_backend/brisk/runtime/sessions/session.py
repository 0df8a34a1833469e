"""What answers requests: a session, which is one model version that all its instances share, or
a pipeline of several.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from brisk.graph.program import Variable
from brisk.runtime.sessions.session_caches import SessionCaches
from brisk.segments.table import SegmentTable
from brisk.segments.values import Value

if TYPE_CHECKING:
    from brisk.exits.serving.frame import ExitingFrame
    from brisk.runtime.arrivals.arrival import ModelArrival
    from brisk.segments.program import SegmentProgram


class Frame(Protocol):
    """One run, computed step by step.

    ``position``: the steps done. ``early``: the frame itself, if learned caches may answer rows of
    it.
    """

    @property
    def early(self) -> ExitingFrame | None: ...
    @property
    def position(self) -> int: ...
    @property
    def upcoming(self) -> str: ...
    @property
    def is_finished(self) -> bool: ...
    def step(self) -> bool: ...
    def results(self) -> dict[str, Value]: ...


class Due(NamedTuple):
    """When a request came and, by its own time-out, is to be answered (monotonic ns)."""

    arrival_ns: int
    deadline_ns: int | None


class Servable(ABC):
    """What a worker serves: one network, or a pipeline of several."""

    load_ns: int
    """The time until it could run."""
    summary: str
    """One line for the log."""
    threads: int
    """The threads that compute a run."""
    table: SegmentTable[Any] | None = None
    """The segments; None for a pipeline, whose networks have theirs."""
    caches: SessionCaches | None = None
    """The early exits; None for a pipeline."""
    prepared: Path | None = None
    """The file of the prepared form, if it runs from one."""
    lookups: Mapping[str, int] = MappingProxyType({})
    """The count of sessions that models of one structure share, by what came of them."""
    weight_bytes = 0
    """The size of the files that the weights are mapped from."""
    has_steady_runs = True
    """Whether the time of a run predicts that of the next one."""
    narrow: SegmentProgram | None = None
    """The same on one thread, for several runs side by side."""
    crowds = 0
    """How often several runs would have gone on side by side."""
    arrival: ModelArrival | None = None
    """The arrival of the files, if they are on their way from elsewhere."""

    @property
    def shared_segments(self) -> int:
        """The number of segments that run in a session which models of their structure share."""
        return 0

    @property
    def awaits_bytes(self) -> bool:
        """Whether requests may not be to run yet, since they would wait for bytes."""
        return self.arrival is not None and self.arrival.holds_requests

    @property
    def is_loading(self) -> bool:
        """Whether lanes still load segments of it."""
        return self.table is not None and self.table.is_loading

    @abstractmethod
    def start(
        self,
        inputs: Mapping[str, Value],
        requested: Sequence[str],
        agreement: float | None = None,
        dues: Sequence[Due] = (),
    ) -> Frame:
        """A new frame. Raises InvalidRequestError where the inputs do not fit the model.

        ``agreement``: share of early answers that must be the model's own; None for what its
        caches promise, 1 for none early. ``dues``: of the requests that it is for; a session is no
        quicker for them, a pipeline may choose other networks.
        """

    @abstractmethod
    def cached_runs(
        self, frame: Frame, inputs: Mapping[str, Value], labels: tuple[str, str]
    ) -> Sequence[CachedRun]:
        """The runs with learned caches that ``frame`` is, or will have had when it ends.

        ``labels``: model and version that they are counted under.
        """

    def lost_device(self) -> None:
        """A run of it was under way when the device was lost: the worker ends behind this call."""
        return

    def start_narrow(self, inputs: Mapping[str, Value], requested: Sequence[str]) -> Frame:
        """Start a run of ``narrow``, which must be there; else like ``start``."""
        return self.start(inputs, requested)

    def close(self) -> None:
        """Let what loads it end soon; called when nobody needs it any more."""
        if self.table is not None:
            self.table.close()


class Session(Servable):
    """One network. Its segments are loaded by lanes once it can run, or by the first request if
    that is faster."""

    path: Path
    table: SegmentTable[Any]
    caches: SessionCaches
    inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]
    taps: Collection[str] = ()
    """The values that segments end behind, for learned caches."""
    starts_with_substitutes = False
    """Whether warm solutions are still to take over (PASK VI, NNV12 3.5)."""

    @property
    @abstractmethod
    def origin(self) -> str:
        """What it was started from: ``model`` or ``artefact``."""

    @property
    @abstractmethod
    def wants_artefact(self) -> bool:
        """Whether there was none that could be used, to the end, and one could be made."""

    def cached_runs(
        self, frame: Frame, inputs: Mapping[str, Value], labels: tuple[str, str]
    ) -> Sequence[CachedRun]:
        early = frame.early
        if early is None and not self.caches.collects:
            return ()
        return [CachedRun(self, early, inputs, labels)]

    @abstractmethod
    def load_warm(self, may_go_on: Callable[[], bool]) -> bool:
        """Let warm solutions take over; whether they have. ``may_go_on``: asked before each."""

    def adopt_prepared(self, may_go_on: Callable[[], bool]) -> bool:
        """Let the prepared form take over, which has been made meanwhile; whether it has.

        Raises BriskError where a session of it cannot be made.
        """
        return False

    def open_narrow(self) -> SegmentProgram | None:
        """What may be ``narrow``; None where it cannot be had. Raises BriskError as above."""
        return None


@dataclass(frozen=True, slots=True, eq=False)
class CachedRun:
    """A finished run of a session that has, or is to have, learned caches."""

    session: Session
    frame: ExitingFrame | None
    """None: there are no learned caches yet, and samples are wanted."""
    inputs: Mapping[str, Value]
    """The inputs, which may be the stub's memory: that goes with the last answer of the run."""
    labels: tuple[str, str]
    """Model and version that the answers are counted under."""

    def copies(self, rows: np.ndarray | None = None) -> dict[str, np.ndarray] | None:
        """Copies of the inputs, or of some rows; None where one has values that numpy has not."""
        values = self.inputs.values()
        if any(value.dtype.isbuiltin != 1 or value.dtype.kind == "O" for value in values):
            return None
        return {
            name: value.copy() if rows is None else value[rows]
            for name, value in self.inputs.items()
        }
