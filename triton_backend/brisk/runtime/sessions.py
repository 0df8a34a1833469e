"""Which peers use which session, and what waits for one that still loads.

Used by the worker's main thread; only ``_Entry.marks`` is also read by the load lane.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from brisk.errors import BriskError, InvalidModelError
from brisk.pipelines import PipelineDescription, is_pipeline, read_pipeline
from brisk.runtime.loader import LoadCompletion, Loader, LoadOutcome
from brisk.runtime.pipeline_session import PipelineSession, assemble
from brisk.runtime.pipeline_trial import Trials
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
    session: Session | PipelineSession | None = None
    backlog: list[Infer] = field(default_factory=list)
    answered: int = 0


@dataclass(frozen=True, slots=True)
class SessionUse:
    """A session and who uses it, at least one; ``key`` counts its waiting requests."""

    key: str
    is_ready: bool
    bindings: tuple[Binding, ...]


@dataclass(slots=True, eq=False)
class _Entry:
    """``parts``: of a pipeline, the entries of its networks, by their files. ``pipelines``: those
    that this network is a part of. ``error``: how its load has failed."""

    key: str
    bindings: list[Binding] = field(default_factory=list)
    marks: list[memoryview] = field(default_factory=list)
    """Of the askers, as long as a load or its lanes may take the worker down."""
    load: int = 0
    has_begun: bool = False
    is_complete: bool = False
    session: Session | PipelineSession | None = None
    error: BriskError | None = None
    parts: dict[Path, _Entry] = field(default_factory=dict)
    pipelines: list[_Entry] = field(default_factory=list)

    @property
    def is_needed(self) -> bool:
        return bool(self.bindings or self.pipelines)

    def begin(self) -> None:
        """Load lane: note in every asker's memory that its load has begun."""
        self.has_begun = True
        for memory in list(self.marks):
            mark.begin(memory)
        for pipeline in list(self.pipelines):
            pipeline.begin()


@dataclass(frozen=True, slots=True)
class _Assembly:
    """A pipeline whose networks load; ``name`` and ``version`` are its first asker's."""

    ticket: int
    entry: _Entry
    description: PipelineDescription
    name: str
    version: int
    started_ns: int


class SessionTable:
    """Sessions by the file they were loaded from, counted by their bindings."""

    def __init__(self, loader: Loader, trials: Trials) -> None:
        self._loader = loader
        self._trials = trials
        self._assemblies: list[_Assembly] = []
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
        path = Path(model.path)
        entry = (
            self._open_pipeline(path, model)
            if is_pipeline(path)
            else self._open(path, model.job_class)
        )
        binding = Binding(peer, model, entry.key, entry.session)
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
        entry = self._entries[binding.key]
        for loading in entry.parts.values() or (entry,):
            self._loader.hurry(loading.load, record.job_class)

    def settle(self, outcome: LoadOutcome) -> list[Binding]:
        """Hand a load's outcome to the bindings that wait for it; those are returned."""
        entry = self._loading[outcome.ticket]
        if outcome.session is None:
            del self._loading[outcome.ticket]
        if not entry.is_needed:  # all that asked for it have gone
            if outcome.session is not None:
                outcome.session.close()
            self._loading.pop(outcome.ticket, None)
            self._loader.give_memory_back()
            return []
        waiting = list(entry.bindings)
        entry.session, entry.error = outcome.session, outcome.error
        for binding in waiting:
            if outcome.session is None:
                self._forget(binding)
            else:
                binding.session = outcome.session
        if isinstance(outcome.session, PipelineSession):
            self.complete(LoadCompletion(outcome.ticket))
        self._assemble()
        return waiting

    def complete(self, completion: LoadCompletion) -> None:
        """Every layer is loaded: from now on the load is to blame for nothing."""
        entry = self._loading.pop(completion.ticket, None)
        if entry is not None:
            entry.is_complete = True
            for memory in entry.marks:
                mark.reset(memory)
            entry.marks.clear()
            self._assemble()

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
        """Every session that was asked for by itself, in the order they were."""
        for key, entry in self._entries.items():
            if entry.bindings:
                yield SessionUse(key, entry.session is not None, tuple(entry.bindings))

    def _open(self, path: Path, job_class: str) -> _Entry:
        """The entry of a model file, whose load starts, as urgently as asked, unless it has."""
        key = _identity(str(path))
        entry = self._entries.get(key)
        if entry is None or entry.error is not None:
            entry = self._entries[key] = _Entry(key)
            stands_back = job_class != JobClass.REALTIME.value and self._serves_realtime()
            ticket = self._expect(entry)
            entry.load = self._loader.load(ticket, path, job_class, entry.begin, stands_back)
        else:
            self._loader.hurry(entry.load, job_class)
        return entry

    def _open_pipeline(self, path: Path, model: LoadModel) -> _Entry:
        """The same for a pipeline, whose networks are shared with whoever else names them.

        It is another one when one of its networks has changed.
        """
        description = read_pipeline(path)
        files = dict.fromkeys(file for _, file in description.networks)
        key = "".join([_identity(str(path)), *(_identity(str(file)) for file in files)])
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = _Entry(key)
            for file in files:
                part = entry.parts[file] = self._open(file, model.job_class)
                part.pipelines.append(entry)
                if part.has_begun and not part.is_complete:
                    entry.begin()
            ticket, now_ns = self._expect(entry), time.monotonic_ns()
            self._assemblies.append(
                _Assembly(ticket, entry, description, model.name, model.version, now_ns)
            )
            self._assemble()
        return entry

    def _expect(self, entry: _Entry) -> int:
        """A ticket for the outcome of the entry's load."""
        self._tickets += 1
        self._loading[self._tickets] = entry
        return self._tickets

    def _assemble(self) -> None:
        """Have the pipelines tried whose networks are all there; fail those that miss one."""
        for assembly in list(self._assemblies):
            parts = assembly.entry.parts
            sessions = {
                path: part.session
                for path, part in parts.items()
                if isinstance(part.session, Session) and part.is_complete
            }
            if len(sessions) < len(parts) and not any(part.error for part in parts.values()):
                continue
            self._assemblies.remove(assembly)
            try:
                _check_parts(assembly)
                labels = (assembly.name, str(assembly.version))
                session = assemble(assembly.description, sessions, labels, assembly.started_ns)
            except BriskError as error:
                self._loader.tell(LoadOutcome(assembly.ticket, None, error))
            else:
                self._trials.add(assembly.ticket, session)

    def _forget(self, binding: Binding) -> None:
        if self._bindings.pop((binding.peer.number, binding.model.model), None) is None:
            return
        entry = self._entries[binding.key]
        entry.bindings.remove(binding)
        binding.session = None
        self._drop_unless_needed(entry)

    def _drop_unless_needed(self, entry: _Entry) -> None:
        """Free a session that nobody uses, and a pipeline's networks that no other one does."""
        if entry.is_needed:
            return
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
        if entry.session is not None:
            entry.session.close()
            entry.session = None
            self._loader.give_memory_back()
        elif entry.parts:
            self._abandon(entry)
        for part in entry.parts.values():
            part.pipelines.remove(entry)
            self._drop_unless_needed(part)
        entry.parts.clear()

    def _abandon(self, entry: _Entry) -> None:
        """Forget a pipeline's load; an outcome that is on its way finds nobody."""
        for assembly in [each for each in self._assemblies if each.entry is entry]:
            self._assemblies.remove(assembly)
            del self._loading[assembly.ticket]
        for ticket in [ticket for ticket, other in self._loading.items() if other is entry]:
            if self._trials.drop(ticket):
                del self._loading[ticket]


def _check_parts(assembly: _Assembly) -> None:
    """Raise the error of the first network that was not loaded, with its name in the pipeline."""
    for words, path in assembly.description.networks:
        error = assembly.entry.parts[path].error
        if error is not None:
            raise type(error)(f"{words}: {error}")


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
