"""Which peers use which session, and what waits for one that still loads.

Used by the worker's main thread; only ``_Entry.marks`` is also read by the load lane.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from brisk.errors import InvalidModelError
from brisk.runtime.loader import LoadCompletion, Loader, LoadOutcome
from brisk.runtime.session import Session
from brisk.runtime.transport import Peer
from brisk.scheduling.job import JobClass
from brisk.wire import mark
from brisk.wire.records import Infer, LoadModel


@dataclass(slots=True, eq=False)
class Binding:
    """One peer's use of a session. ``backlog``: requests that came before it was ready.

    ``answered``: how many of its requests were answered well.
    """

    peer: Peer
    model: LoadModel
    key: str
    session: Session | None = None
    backlog: list[Infer] = field(default_factory=list)
    answered: int = 0


@dataclass(frozen=True, slots=True)
class SessionUse:
    """A session and who uses it, at least one; ``key`` counts its waiting requests."""

    key: str
    is_ready: bool
    bindings: tuple[Binding, ...]


@dataclass(slots=True)
class _Entry:
    bindings: list[Binding] = field(default_factory=list)
    marks: list[memoryview] = field(default_factory=list)
    """Of the askers, as long as a load or its lanes may take the worker down."""
    load: int = 0
    has_begun: bool = False
    is_complete: bool = False
    session: Session | None = None

    def begin(self) -> None:
        """Load lane: note in every asker's memory that its load has begun."""
        self.has_begun = True
        for memory in list(self.marks):
            mark.begin(memory)


class SessionTable:
    """Sessions by the file they were loaded from, counted by their bindings."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._entries: dict[str, _Entry] = {}
        self._bindings: dict[tuple[int, int], Binding] = {}
        self._loading: dict[int, _Entry] = {}
        self._tickets = 0

    def __len__(self) -> int:
        return len(self._entries)

    def bind(self, peer: Peer, model: LoadModel) -> Binding:
        """Start or join a session; the binding's ``session`` is None while it loads.

        Raises InvalidModelError where there is no such file or the peer uses the number twice,
        ProtocolError where its mark lies outside of its memory.
        """
        if (peer.number, model.model) in self._bindings:
            raise InvalidModelError(f"model number {model.model} is taken on this connection")
        memory = peer.view.memory(mark.checked(model.mark))
        key = _identity(model.path)
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry()
            self._tickets += 1
            self._loading[self._tickets] = entry
            entry.load = self._loader.load(
                self._tickets,
                Path(model.path),
                model.job_class,
                entry.begin,
                model.job_class != JobClass.REALTIME.value and self._serves_realtime(),
            )
        else:
            self._loader.hurry(entry.load, model.job_class)
        binding = Binding(peer, model, key, entry.session)
        if not entry.is_complete:
            entry.marks.append(memory)
            if entry.has_begun:
                mark.begin(memory)
        entry.bindings.append(binding)
        self._bindings[peer.number, model.model] = binding
        return binding

    def _serves_realtime(self) -> bool:
        """Whether a model whose requests are real-time by default is ready."""
        return any(
            binding.session is not None and binding.model.job_class == JobClass.REALTIME.value
            for binding in self._bindings.values()
        )

    def find(self, peer: Peer, model: int) -> Binding | None:
        return self._bindings.get((peer.number, model))

    def wait_for(self, binding: Binding, record: Infer) -> None:
        """Keep a request until its session is loaded, which is as urgent as it now."""
        binding.backlog.append(record)
        self._loader.hurry(self._entries[binding.key].load, record.job_class)

    def settle(self, outcome: LoadOutcome) -> list[Binding]:
        """Hand a load's outcome to the bindings that wait for it; those are returned."""
        entry = self._loading[outcome.ticket]
        if outcome.session is None:
            del self._loading[outcome.ticket]
        if not entry.bindings:  # all that asked for it have gone
            if outcome.session is not None:
                outcome.session.close()
            self._loading.pop(outcome.ticket, None)
            self._loader.give_memory_back()
            return []
        waiting = list(entry.bindings)
        if outcome.session is None:
            for binding in waiting:
                self._forget(binding)
        else:
            entry.session = outcome.session
            for binding in waiting:
                binding.session = outcome.session
        return waiting

    def complete(self, completion: LoadCompletion) -> None:
        """Every layer is loaded: from now on the load is to blame for nothing."""
        entry = self._loading.pop(completion.ticket, None)
        if entry is not None:
            entry.is_complete = True
            for memory in entry.marks:
                mark.reset(memory)
            entry.marks.clear()

    def withdraw(self, peer: Peer, request: int) -> bool:
        """Take a request out of the backlog of a model that loads; False where it is in none."""
        for binding in self._bindings.values():
            if binding.peer is peer:
                for record in binding.backlog:
                    if record.request == request:
                        binding.backlog.remove(record)
                        return True
        return False

    def release_all(self, peer: Peer) -> None:
        """Give back everything ``peer`` uses."""
        for binding in [binding for binding in self._bindings.values() if binding.peer is peer]:
            self._forget(binding)

    def uses(self) -> Iterator[SessionUse]:
        """Every session, in the order they were asked for."""
        for key, entry in self._entries.items():
            yield SessionUse(key, entry.session is not None, tuple(entry.bindings))

    def _forget(self, binding: Binding) -> None:
        if self._bindings.pop((binding.peer.number, binding.model.model), None) is None:
            return
        entry = self._entries[binding.key]
        entry.bindings.remove(binding)
        binding.session = None
        if not entry.bindings:
            del self._entries[binding.key]
            if entry.session is not None:
                entry.session.close()
                entry.session = None
                self._loader.give_memory_back()


def _identity(path: str) -> str:
    """Path and state of the model file and of its neighbours, external data among them.

    A changed file is another session.
    """
    directory = os.path.dirname(os.path.realpath(path))
    try:
        os.stat(path)
        with os.scandir(directory) as entries:
            files = sorted((entry.name, entry.stat()) for entry in entries if entry.is_file())
    except (OSError, ValueError) as error:
        raise InvalidModelError(f"model file {path!r} cannot be read: {error}") from error
    state = [(name, status.st_ino, status.st_size, status.st_mtime_ns) for name, status in files]
    return f"{os.path.realpath(path)}:{state}"
