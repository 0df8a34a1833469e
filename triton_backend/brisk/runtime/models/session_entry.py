"""A session's entry in the table: who uses it, how its load goes, what it is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from brisk.errors import BriskError
from brisk.protocol import request_flags
from brisk.protocol.records import Infer, LoadModel
from brisk.runtime.models.servable import Servable
from brisk.runtime.requests.connections import Peer
from brisk.runtime.requests.sequences import Sequences


@dataclass(slots=True, eq=False)
class Binding:
    """One peer's use of a session. ``backlog``: requests that came before it was ready.

    ``answered``, ``failed``: how many of its requests the worker answered well, or with an error.
    ``sequences``: None where the model has no states.
    """

    peer: Peer
    model: LoadModel
    key: str
    session: Servable | None = None
    backlog: list[Infer] = field(default_factory=list)
    answered: int = 0
    failed: int = 0
    sequences: Sequences | None = None


@dataclass(slots=True, eq=False)
class SessionEntry:
    """``parts``: of a pipeline, the entries of its networks, by their files. ``pipelines``: those
    that this network is a part of. ``error``: how its load has failed.

    Used by the worker's main thread; ``begin`` and ``end`` are called by those that load.
    """

    key: str
    bindings: list[Binding] = field(default_factory=list)
    marks: list[memoryview] = field(default_factory=list)
    """Of the askers, as long as a load or its lanes may take the worker down."""
    load: int = 0
    has_begun: bool = False
    is_complete: bool = False
    session: Servable | None = None
    error: BriskError | None = None
    parts: dict[Path, SessionEntry] = field(default_factory=dict)
    pipelines: list[SessionEntry] = field(default_factory=list)

    @property
    def is_needed(self) -> bool:
        return bool(self.bindings or self.pipelines)

    def ask(self, memory: memoryview) -> None:
        """``memory``: another asker's mark, which shows from now on whether this loads."""
        if self.is_complete:
            return
        self.marks.append(memory)
        if self.has_begun:
            request_flags.begin(memory)
        if self.is_complete:  # it has ended meanwhile
            request_flags.reset(memory)

    def begin(self) -> None:
        """Load lane: note in every asker's memory that its load has begun."""
        self.has_begun = True
        for memory in list(self.marks):
            request_flags.begin(memory)
        for pipeline in list(self.pipelines):
            pipeline.begin()

    def end(self) -> None:
        """Whoever loads the last layer, before any request can need it: from now on the load is to
        blame for nothing.
        """
        self.is_complete = True
        for memory in list(self.marks):
            request_flags.reset(memory)
