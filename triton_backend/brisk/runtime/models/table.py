"""The peers that use each session, and the requests that wait for one that still loads.

Used by the worker's main thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from brisk.errors import InvalidModelError, ProtocolError
from brisk.os_priority import Precedence
from brisk.protocol.entry_files import is_pipeline
from brisk.protocol.records import Infer, LoadModel
from brisk.protocol.shared_memory import checked_mark, reset_mark
from brisk.runtime.early_exit.first_learning import is_trained_by_hand
from brisk.runtime.models.entry import (
    Binding,
    LoadCompletion,
    LoadOutcome,
    LoadState,
    SessionEntry,
)
from brisk.runtime.models.loader import Loader
from brisk.runtime.models.sequences import Sequences
from brisk.runtime.peers.connections import Peer
from brisk.runtime.sessions.identity import identity_of
from brisk.scheduling.job_class import JobClass


class CompositeLoads(Protocol):
    """Loads of entries that are made of several networks, each loaded as an entry of its own."""

    def add(self, entry: SessionEntry) -> None:
        """Let ``entry`` wait for its networks."""

    def drop(self, entry: SessionEntry) -> None:
        """Forget ``entry``, which no binding waits for any more."""

    def assemble(self) -> None:
        """Check which entries are complete, since networks have been loaded as far as loader
        threads do, or have failed."""


class SessionTable:
    """Sessions by the file they were loaded from; a session lives as long as its bindings."""

    def __init__(self, loader: Loader, pipelines: CompositeLoads, precedence: Precedence) -> None:
        """Begin without models. ``precedence`` is notified whether a real-time model is ready."""
        self._precedence = precedence
        self._loader = loader
        self._pipelines = pipelines
        self._entries: dict[str, SessionEntry] = {}
        self.bindings: dict[tuple[int, int], Binding] = {}
        """The bindings by the peer's number and the peer's own number of the model; others must
        not change this."""
        self.serves_realtime = False
        """Whether a model whose requests are real-time by default is ready."""

    def __len__(self) -> int:
        return len(self._entries)

    def bind(self, peer: Peer, model: LoadModel) -> Binding:
        """Start or join a session; the binding's ``session`` is None while it loads.

        Raises InvalidModelError if the file, or a first state that it should have, does not exist,
        or if the peer has used the number already. Raises ProtocolError if the peer's mark lies
        outside of its memory.
        """
        if (peer.number, model.model) in self.bindings:
            raise InvalidModelError(f"model number {model.model} is taken on this connection")
        memory = peer.view.memory(checked_mark(model.mark))
        path = Path(model.path)
        sequences = Sequences(model) if model.states else None
        if sequences is not None and is_pipeline(path):
            raise InvalidModelError("a pipeline cannot have states")
        if is_pipeline(path):
            entry = self._open_pipeline(path, model)
        else:
            entry = self._open(path, model, _early_answers(model))
        binding = Binding(peer, model, entry.key, entry.session, sequences=sequences)
        entry.ask(memory)
        entry.bindings.append(binding)
        self.bindings[peer.number, model.model] = binding
        self._follow()
        return binding

    def _follow(self) -> None:
        """Note that the set of served models has changed."""
        self.serves_realtime = any(
            binding.session is not None and binding.model.job_class == JobClass.REALTIME.value
            for binding in self.bindings.values()
        )
        self._precedence.follow(self.serves_realtime)

    def ask_for_narrow(self, binding: Binding) -> bool:
        """Ask for narrow sessions, because requests of the binding's model crowd. Return False if
        what computes the model may still change."""
        entry = self._entries.get(binding.key)
        if entry is not None and entry.is_settled and entry.pipeline is None:
            self._loader.make_narrow(entry)
            return True
        return False

    def bindings_of(self, peer: Peer) -> list[Binding]:
        return [each for each in self.bindings.values() if each.peer is peer]

    def wait_for(self, binding: Binding, record: Infer) -> None:
        """Keep a request until its session is loaded; the load inherits the request's priority."""
        binding.backlog.append(record)
        entry = self._entries[binding.key]
        for loading in entry.networks.values() or (entry,):
            self._loader.raise_priority(loading, record.form.job_class)

    def settle(self, outcome: LoadOutcome) -> list[Binding]:
        """Hand a load's outcome to the bindings that wait for it, and return these."""
        entry, session = outcome.entry, outcome.session
        if not entry.is_needed:  # all that asked for it have gone
            if session is not None:
                session.close()
            self._loader.give_memory_back()
            return []
        waiting = list(entry.bindings)
        entry.session, entry.error = session, outcome.error
        if session is None:
            entry.reach(LoadState.FAILED)
        elif entry.pipeline is not None:  # all of its networks are loaded
            entry.reach(LoadState.LOADED)
            entry.marks.clear()
        for binding in waiting:
            if session is None:
                self._forget(binding)
            else:
                binding.session = session
        self._follow()
        self._pipelines.assemble()
        return waiting

    def complete(self, completion: LoadCompletion) -> None:
        """Note that no loader thread of the session is at work any more."""
        completion.entry.marks.clear()
        self._pipelines.assemble()

    def spare_loads(self, but_of: Path | None) -> None:
        """Let no load be blamed but that of the file ``but_of``: this worker ends on purpose."""
        for entry in self._entries.values():
            if but_of is None or but_of not in (entry.path, *entry.networks):
                entry.spare()

    def take_late(self, now_ns: int) -> Iterator[tuple[Binding, Infer]]:
        """Take out and yield requests in backlogs whose time has run out."""
        for binding in self.bindings.values():
            for record in list(binding.backlog):
                if record.deadline_ns is not None and record.deadline_ns < now_ns:
                    binding.backlog.remove(record)
                    yield binding, record

    def withdraw(self, peer: Peer, request: int) -> bool:
        """Take a request out of the backlog of a loading model; return False if it is in none."""
        for binding in self.bindings.values():
            if binding.peer is peer:
                for record in binding.backlog:
                    if record.request == request:
                        binding.backlog.remove(record)
                        return True
        return False

    def release_all(self, peer: Peer) -> None:
        """Give back everything that ``peer`` uses. If its process lives on, it finds no mark of a
        load: this worker has not died."""
        for binding in self.bindings_of(peer):
            with contextlib.suppress(ProtocolError):  # the peer has taken the memory back
                reset_mark(peer.view.memory(binding.model.mark))
            self._forget(binding)

    def forget_idle_sequences(self, now_ns: int) -> None:
        """Forget idle sequences (``Sequences.forget_idle``)."""
        for binding in self.bindings.values():
            if binding.sequences is not None:
                binding.sequences.forget_idle(now_ns)

    def entries(self) -> Iterator[SessionEntry]:
        """Return every session that was asked for by itself, in the order of the requests."""
        return (entry for entry in self._entries.values() if entry.bindings)

    def _open(self, path: Path, requester: LoadModel, early_answers: str = "") -> SessionEntry:
        """Return the entry of a model file; start its load as urgently as asked, unless begun.

        ``early_answers``: what is asked of these, by ``_early_answers``.
        """
        key = identity_of(str(path), requester.tuning) + early_answers
        entry = self._entries.get(key)
        if entry is None or entry.error is not None:
            is_urgent = requester.job_class == JobClass.REALTIME.value
            has_low_priority = not is_urgent and self.serves_realtime
            entry = self._entries[key] = SessionEntry(key, path, requester, has_low_priority)
            self._loader.load(entry)
        else:
            self._loader.raise_priority(entry, requester.job_class)
        return entry

    def _open_pipeline(self, path: Path, requester: LoadModel) -> SessionEntry:
        """Return the entry of a pipeline, whose networks are shared with others that name them.

        A pipeline is a new entry if one of its networks has changed. The early answers that it
        asks for are learned for none of its networks, which others may share that ask for none.
        """
        from brisk.pipelines import read_pipeline  # imported for the first pipeline only

        description = read_pipeline(path)
        files = dict.fromkeys(file for _, file in description.networks)
        key = "".join(
            [identity_of(str(path)), *(identity_of(str(file), requester.tuning) for file in files)]
        )
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = SessionEntry(key, path, requester, pipeline=description)
            try:
                self._open_networks(entry, files)
            except BaseException:
                self._drop_unless_needed(entry)
                raise
            self._pipelines.add(entry)
        return entry

    def _open_networks(self, entry: SessionEntry, files: Iterable[Path]) -> None:
        asks_none = entry.requester._replace(accuracy_ppm=0, tolerance="", smaller="")
        for file in files:
            network = entry.networks[file] = self._open(file, asks_none)
            network.pipelines.append(entry)
            if LoadState.PARSING <= network.state < LoadState.LOADED:
                entry.begin()

    def _forget(self, binding: Binding) -> None:
        if self.bindings.pop((binding.peer.number, binding.model.model), None) is None:
            return
        entry = self._entries[binding.key]
        entry.bindings.remove(binding)
        binding.session = None
        self._follow()
        self._drop_unless_needed(entry)

    def _drop_unless_needed(self, entry: SessionEntry) -> None:
        """Free an entry without users, and those of its networks that no other entry uses."""
        if entry.is_needed:
            return
        if self._entries.get(entry.key) is entry:
            del self._entries[entry.key]
        if entry.session is not None:
            entry.session.close()
            entry.session = None
            self._loader.give_memory_back()
        elif entry.pipeline is not None:
            self._pipelines.drop(entry)
        else:
            self._loader.drop(entry)
        for network in entry.networks.values():
            network.pipelines.remove(entry)
            self._drop_unless_needed(network)
        entry.networks.clear()


def _early_answers(requester: LoadModel) -> str:
    """Return a text of the early answers that an entry asks to be learned; empty if none.

    Entries of one file that ask for others have sessions of their own, since caches are a
    session's: so do an entry whose settings have changed and its predecessor, which Triton unloads
    only once the new one is loaded. Caches that were trained by hand are the same for all.
    """
    if not requester.accuracy_ppm or is_trained_by_hand(Path(requester.path)):
        return ""
    asked = requester.accuracy_ppm, requester.tolerance, requester.smaller
    return ":".join(map(str, ("", *asked, requester.needs_classes)))
