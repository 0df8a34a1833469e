"""A model file in memory: the progress of its load, its users, and what it consists of."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from brisk.errors import BriskError
from brisk.exits.files.learning_record import Aim
from brisk.protocol.records import Infer, LoadModel
from brisk.protocol.shared_memory import reset_mark, set_mark
from brisk.runtime.models.sequences import Sequences
from brisk.runtime.peers.connections import Peer
from brisk.runtime.sessions.session import Servable
from brisk.scheduling.times import RunProfile
from brisk.telemetry.metrics import BOUNDS_NS

if TYPE_CHECKING:
    from brisk.pipelines import PipelineDescription  # a start without pipelines does not import it


class LoadState(IntEnum):
    """The stages of a load, in order; a load that fails does so before it is RUNNABLE."""

    QUEUED = 0
    """The load waits for the loader thread; that of a pipeline waits for its networks."""
    PARSING = 1
    """The model is being made runnable."""
    RUNNABLE = 2
    """The model answers requests while loader threads load its segments."""
    LOADED = 3
    """Every segment is there, or has failed."""
    SETTLED = 4
    """Nothing that computes the model is exchanged any more, until learned caches want other
    boundaries: equal inputs of equal shapes get bit-identical answers."""
    FAILED = 5


@dataclass(slots=True, eq=False)
class Binding:
    """One peer's use of a session."""

    peer: Peer
    model: LoadModel
    key: str
    session: Servable | None = None
    backlog: list[Infer] = field(default_factory=list)
    """The requests that came before the session was ready."""
    answered: int = 0
    """The number of the peer's requests that the worker has answered without an error."""
    failed: int = 0
    """The number of the peer's requests that the worker has answered with an error."""
    sequences: Sequences | None = None
    """The sequences; None if the model has no states."""
    lone_run: tuple[RunProfile, int] | None = None
    """The profile of the last run of one request, and that request's rows."""
    offered_ns: int | None = None
    """The time of a row that the peer, a stub, was told with the offer to compute the model itself
    (``offering``); None without an offer."""
    is_refused: bool = False
    """Whether the peer may never compute the model itself."""
    seen: int = 0
    """The value of ``answered`` at the last look of ``offering``."""
    rate: float = 0.0
    """The recent rate, in answers a second."""
    durations: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_NS) + 1))
    """Successfully answered requests, counted by the metrics' classes of the run's duration."""


@dataclass(slots=True, eq=False)
class SessionEntry:
    """A file's session with its load and its users.

    It belongs to the worker's main thread, except for ``state``, which is changed by one thread
    after the other: the loader thread, then the thread that loads the last segment, then the one
    that does what follows a load.
    """

    key: str
    path: Path
    requester: LoadModel
    """The first request for the load, under whose name the load is counted."""
    has_low_priority: bool = False
    """Whether the model is loaded at lower priority, on processors that others leave idle."""
    pipeline: PipelineDescription | None = None
    """The pipeline's description; None if the entry is one network."""
    asked_ns: int = field(default_factory=time.monotonic_ns)
    state: LoadState = LoadState.QUEUED
    bindings: list[Binding] = field(default_factory=list)
    marks: list[memoryview] = field(default_factory=list)
    """The requesters' marks of a load under way, while it may crash the worker."""
    awaits_bytes: bool = False
    """Whether its loader threads wait for bytes; a crash is then not attributed to it."""
    is_short: bool = False
    """Whether loader threads have left the rest to runs, as memory or files were short; a crash is
    then not attributed to the load."""
    session: Servable | None = None
    error: BriskError | None = None
    """The error with which the load failed."""
    networks: dict[Path, SessionEntry] = field(default_factory=dict)
    """A pipeline's networks, by their files."""
    pipelines: list[SessionEntry] = field(default_factory=list)
    """The pipelines that this network belongs to."""

    @property
    def is_needed(self) -> bool:
        return bool(self.bindings or self.pipelines)

    @property
    def aim(self) -> Aim | None:
        """The aim of the early answers to learn from the model's traffic; None: learn none.

        None for a pipeline's network, whose runs are not sampled, and for a model with states,
        which caches do not compute.
        """
        requester, is_asked = self.requester, self.bindings or not self.pipelines
        if not requester.accuracy_ppm or requester.states or not is_asked:
            return None
        asked = requester.accuracy_ppm / 1e6, requester.tolerance, requester.smaller
        return Aim.of(Path(requester.path), *asked, needs_classes=requester.needs_classes)

    @property
    def is_settled(self) -> bool:
        """Whether what computes the model, or all networks of the pipeline, stays as it is."""
        if self.pipeline is None:
            return self.state is LoadState.SETTLED
        return self.state >= LoadState.LOADED and all(
            network.is_settled for network in self.networks.values()
        )

    @property
    def labels(self) -> tuple[str, str]:
        """The model and version under which the load is counted."""
        return self.requester.name, str(self.requester.version)

    def ask(self, memory: memoryview) -> None:
        """Let another requester's mark, in ``memory``, show from now on whether the load runs."""
        if self.state >= LoadState.LOADED:
            return
        # A loader thread may begin or end the load between any two of these lines. The mark is put
        # in the list before the state is read twice, so a thread that changes the state finds it.
        self.marks.append(memory)
        if self.state >= LoadState.PARSING and not self.awaits_bytes:
            set_mark(memory)
        if self.state >= LoadState.LOADED or self.is_short:
            reset_mark(memory)

    def begin(self) -> None:
        """Note in every requester's memory that the load began. Called by the loader thread."""
        self.state = LoadState.PARSING
        for memory in list(self.marks):
            set_mark(memory)
        for pipeline in list(self.pipelines):
            pipeline.begin()

    def opens(self, is_opening: bool) -> None:
        """Note whether a segment whose bytes have come is opened. Called by any loader thread."""
        self.awaits_bytes = not is_opening
        for memory in list(self.marks):
            if is_opening and self.state < LoadState.LOADED:
                set_mark(memory)
            else:
                reset_mark(memory)

    def runs_short(self) -> None:
        """Note that loader threads leave the rest to runs. Called by any loader thread."""
        self.is_short = True
        for memory in list(self.marks):
            reset_mark(memory)

    def spare(self) -> None:
        """Attribute no crash to the load from now on, because the worker ends on purpose."""
        memories, self.marks = self.marks, []
        for memory in memories:
            reset_mark(memory)

    def reach(self, state: LoadState) -> None:
        """Note that the load has reached ``state``. Any thread.

        LOADED is noted before any request can need the last segment. From LOADED or FAILED on no
        crash is attributed to the load.
        """
        self.state = state
        if state in (LoadState.LOADED, LoadState.FAILED):
            for memory in list(self.marks):
                reset_mark(memory)


# How a load ends or goes on, as reported to the worker's main thread.


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """The end of a load's first stage, with exactly one of ``session`` and ``error``."""

    entry: SessionEntry
    session: Servable | None
    error: BriskError | None


@dataclass(frozen=True, slots=True)
class LoadCompletion:
    """Nothing of the session's load runs any more: all segments are loaded, or memory or files
    were short for the rest, which runs load."""

    entry: SessionEntry


@dataclass(frozen=True, slots=True)
class LoadArrival:
    """Enough of the session's files has arrived that its requests may run, or nothing has for so
    long that they are refused."""

    entry: SessionEntry


Outcome: TypeAlias = "LoadOutcome | LoadArrival | LoadCompletion"
