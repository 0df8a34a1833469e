"""A model file in memory: how its load goes, who uses it, what it is made of."""

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
    from brisk.pipelines import PipelineDescription  # a start without one does without


class LoadState(IntEnum):
    """The life of a load, in order; a load that fails does so before it is RUNNABLE."""

    QUEUED = 0
    """The load waits for the load lane, that of a pipeline for its networks."""
    PARSING = 1
    """The model is made runnable."""
    RUNNABLE = 2
    """The model answers requests, while lanes load its segments."""
    LOADED = 3
    """Every segment is there, or has failed."""
    WARM = 4
    """Sessions that run faster have taken over, and an artefact will."""
    SETTLED = 5
    """Nothing that computes the model is exchanged any more, until learned caches want other
    boundaries: equal inputs of equal shapes have answers of equal bits."""
    FAILED = 6


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
    """How many requests of the peer the worker has answered well."""
    failed: int = 0
    """How many it has answered with an error."""
    sequences: Sequences | None = None
    """None: the model has no states."""
    lone_run: tuple[RunProfile, int] | None = None
    """The profile of the last run of one request, and that request's rows."""
    is_offered: bool = False
    """Whether the peer, a stub, may compute the model itself (``offering``)."""
    is_refused: bool = False
    """Whether it never may."""
    seen: int = 0
    """The value of ``answered`` at the last look of ``offering``."""
    rate: float = 0.0
    """The answers a second of late."""
    durations: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_NS) + 1))
    """How many of the requests answered well had runs of each class of the metrics' durations."""


@dataclass(slots=True, eq=False)
class SessionEntry:
    """A file's session with its load and all that use it.

    It belongs to the worker's main thread, but for the life of the load: ``state`` is changed by
    one thread after the other, the load lane, then the one that loads the last segment, then the
    one that does what follows a load.
    """

    key: str
    path: Path
    asker: LoadModel
    """The first to ask, under whose name the load is counted."""
    stands_back: bool = False
    """Whether the model is loaded on what processors others leave."""
    pipeline: PipelineDescription | None = None
    """None: the entry is one network."""
    asked_ns: int = field(default_factory=time.monotonic_ns)
    state: LoadState = LoadState.QUEUED
    bindings: list[Binding] = field(default_factory=list)
    marks: list[memoryview] = field(default_factory=list)
    """The askers' marks of a load under way, as long as it may take the worker down."""
    awaits_bytes: bool = False
    """Whether its lanes do nothing until some arrive, so that it is to blame for nothing now."""
    session: Servable | None = None
    error: BriskError | None = None
    """The failure of the load."""
    networks: dict[Path, SessionEntry] = field(default_factory=dict)
    """A pipeline's networks, by their files."""
    pipelines: list[SessionEntry] = field(default_factory=list)
    """The pipelines that this network belongs to."""

    @property
    def is_needed(self) -> bool:
        return bool(self.bindings or self.pipelines)

    @property
    def aim(self) -> Aim | None:
        """What early answers that its traffic is to teach aim at; None: none are.

        A pipeline's network has none, since nobody samples its runs; nor has a model with states,
        which caches know nothing of.
        """
        asker, is_asked = self.asker, self.bindings or not self.pipelines
        if not asker.accuracy_ppm or asker.states or not is_asked:
            return None
        return Aim(asker.accuracy_ppm / 1e6, asker.tolerance)

    @property
    def is_settled(self) -> bool:
        """Whether what computes it, or all of its networks, stays as it is."""
        if self.pipeline is None:
            return self.state is LoadState.SETTLED
        return self.state >= LoadState.LOADED and all(
            network.is_settled for network in self.networks.values()
        )

    @property
    def labels(self) -> tuple[str, str]:
        """Model and version that the load is counted under."""
        return self.asker.name, str(self.asker.version)

    def ask(self, memory: memoryview) -> None:
        """Let another asker's mark, in ``memory``, show from now on whether this loads."""
        if self.state >= LoadState.LOADED:
            return
        # A lane may begin or end the load between any two of these lines: the mark is in the list
        # before the state is read, and read again, so that whoever changes the state finds it.
        self.marks.append(memory)
        if self.state >= LoadState.PARSING and not self.awaits_bytes:
            set_mark(memory)
        if self.state >= LoadState.LOADED:
            reset_mark(memory)

    def begin(self) -> None:
        """Load lane: note in every asker's memory that its load has begun."""
        self.state = LoadState.PARSING
        for memory in list(self.marks):
            set_mark(memory)
        for pipeline in list(self.pipelines):
            pipeline.begin()

    def opens(self, is_opening: bool) -> None:
        """Any lane: one of its segments is being opened, whose bytes have come, or none is."""
        self.awaits_bytes = not is_opening
        for memory in list(self.marks):
            if is_opening and self.state < LoadState.LOADED:
                set_mark(memory)
            else:
                reset_mark(memory)

    def loaded(self) -> None:
        """Any lane: every segment is there, or has failed."""
        self.reach(LoadState.LOADED)

    def reach(self, state: LoadState) -> None:
        """Note that the load has come so far.

        LOADED is noted before any request can need the last segment. From LOADED or FAILED on the
        load is to blame for nothing.
        """
        self.state = state
        if state in (LoadState.LOADED, LoadState.FAILED):
            for memory in list(self.marks):
                reset_mark(memory)


# What becomes of a load, as the worker's main thread is told.


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """The end of a load's first stage, with exactly one of ``session`` and ``error``."""

    entry: SessionEntry
    session: Servable | None
    error: BriskError | None


@dataclass(frozen=True, slots=True)
class LoadCompletion:
    """All segments of the session are loaded; nothing of its load runs any more."""

    entry: SessionEntry


@dataclass(frozen=True, slots=True)
class LoadArrival:
    """What arrives of the session's files has come so far that its requests may run, or has not
    for so long that they are refused."""

    entry: SessionEntry


Outcome: TypeAlias = "LoadOutcome | LoadArrival | LoadCompletion"
