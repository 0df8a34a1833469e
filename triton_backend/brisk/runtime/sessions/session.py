"""The interface of what answers requests: a session, which is one model version shared by all its
instances, or a pipeline of several models.
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

    ``position``: the steps done. ``early``: the frame itself, if learned caches may answer its
    rows; else None.
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
    """A request's time of arrival, and when it is due by its own time-out (monotonic ns);
    ``requests``: how many came together, with the same times."""

    arrival_ns: int
    deadline_ns: int | None
    requests: int = 1


class Servable(ABC):
    """A model as a worker serves it: one network, or a pipeline of several networks."""

    load_ns: int
    """The time until it could run."""
    summary: str
    """One line for the log."""
    threads: int
    """The number of threads that compute a run."""
    table: SegmentTable[Any] | None = None
    """The segments; None for a pipeline, whose networks have their own."""
    caches: SessionCaches | None = None
    """The early exits; None for a pipeline."""
    prepared: Path | None = None
    """The file of its prepared form, if it runs from one."""
    lookups: Mapping[str, int] = MappingProxyType({})
    """The number of look-ups of sessions shared by models of one structure, by result."""
    weight_bytes = 0
    """The size of the files that the weights are mapped from."""
    has_steady_runs = True
    """Whether the duration of a run predicts that of the next one."""
    narrow: SegmentProgram | None = None
    """The same model on one thread, for several concurrent runs."""
    crowds = 0
    """The number of times when several runs could have been concurrent."""
    arrival: ModelArrival | None = None
    """The arrival of its files, if they are on their way from elsewhere."""

    @property
    def shared_segments(self) -> int:
        """The number of segments that run in sessions shared by models of one structure."""
        return 0

    @property
    def awaits_bytes(self) -> bool:
        """Whether some requests may have to wait for bytes before they run."""
        return self.arrival is not None and self.arrival.holds_requests

    @property
    def is_loading(self) -> bool:
        """Whether segments of the model are left to load."""
        return self.table is not None and self.table.is_loading

    @property
    def awaits_load(self) -> bool:
        """Whether a run may be waiting for a segment of the model to be loaded."""
        return self.table is not None and self.table.holds_executors

    @abstractmethod
    def start(
        self,
        inputs: Mapping[str, Value],
        requested: Sequence[str],
        agreement: float | None = None,
        dues: Sequence[Due] = (),
    ) -> Frame:
        """Return a new frame. Raises InvalidRequestError if the inputs do not fit the model.

        ``agreement``: the fraction of early answers that must be the model's own; None: what its
        caches promise; 1: none are early. ``dues``: of the frame's requests; a session ignores
        them, a pipeline chooses its networks by them.
        """

    @abstractmethod
    def cached_runs(
        self,
        frame: Frame,
        inputs: Mapping[str, Value],
        labels: tuple[str, str],
        agreement: float | None = None,
    ) -> Sequence[CachedRun]:
        """Return the runs with learned caches that ``frame`` is, or will have had when it ends.

        ``labels``: the model and version under which they are counted. ``agreement``: that with
        which the frame was started; a run that asked for no early answer is never sampled.
        """

    def lost_device(self) -> None:
        """Note that the device was lost during a run; the worker ends after this call."""
        return

    def start_narrow(self, inputs: Mapping[str, Value], requested: Sequence[str]) -> Frame:
        """Start a run of ``narrow``, which must be there; otherwise like ``start``."""
        return self.start(inputs, requested)

    def close(self) -> None:
        """Let its loader threads end soon. Called when it is no longer needed."""
        if self.table is not None:
            self.table.close()


class Session(Servable):
    """One network. Loader threads load its segments once it can run, or the first request loads
    them if that is faster."""

    path: Path
    table: SegmentTable[Any]
    caches: SessionCaches
    inputs: tuple[Variable, ...]
    outputs: tuple[Variable, ...]
    taps: Collection[str] = ()
    """The values after which segments end, for learned caches."""
    starts_with_substitutes = False
    """Whether warm solutions take over later from its first ones (PASK VI, NNV12 3.5)."""

    @property
    @abstractmethod
    def origin(self) -> str:
        """The file that the session was started from: ``model`` or ``artefact``."""

    @property
    @abstractmethod
    def wants_artefact(self) -> bool:
        """Whether no artefact could be used to the end of the start, and one could be made."""

    def cached_runs(
        self,
        frame: Frame,
        inputs: Mapping[str, Value],
        labels: tuple[str, str],
        agreement: float | None = None,
    ) -> Sequence[CachedRun]:
        early = frame.early
        opts_out = agreement is not None and agreement >= 1
        if early is None and (opts_out or not self.caches.collects):
            return ()
        if any(each.optional and each.name in inputs for each in self.inputs):
            return ()  # what was learned reads none, and a scalar would be no sample of rows
        return [CachedRun(self, early, inputs, labels)]

    @abstractmethod
    def load_warm(self, may_go_on: Callable[[], bool]) -> bool:
        """Let warm solutions take over, each if ``may_go_on()``. Return whether they have."""

    def adopt_prepared(self, may_go_on: Callable[[], bool]) -> bool:
        """Let the prepared form, made meanwhile, take over; return whether it has.

        Raises BriskError if one of its sessions cannot be made.
        """
        return False

    def open_narrow(self) -> SegmentProgram | None:
        """Return a program for ``narrow``; None if there can be none. Raises BriskError too."""
        return None


@dataclass(frozen=True, slots=True, eq=False)
class CachedRun:
    """A finished run of a session that has, or is to have, learned caches."""

    session: Session
    frame: ExitingFrame | None
    """The frame; None if there are no learned caches yet, and samples are wanted."""
    inputs: Mapping[str, Value]
    """The inputs. They may be in the stub's memory, which is freed with the run's last answer."""
    labels: tuple[str, str]
    """The model and version under which the answers are counted."""

    def copies(self, rows: np.ndarray | None = None) -> dict[str, np.ndarray] | None:
        """Return copies of the inputs, or of some rows; None if numpy has no type for a value, or
        no memory is left for them: no request fails for want of a copy."""
        values = self.inputs.values()
        if any(value.dtype.isbuiltin != 1 or value.dtype.kind == "O" for value in values):
            return None
        try:
            return {
                name: value.copy() if rows is None else value[rows]
                for name, value in self.inputs.items()
            }
        except MemoryError:
            return None
