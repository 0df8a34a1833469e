"""Loads pipelines: each is assembled and tried when the last of its nodes' networks is loaded.

A network is a session shared with ordinary entries. The trial runs on the worker's main thread,
because frames of a session that serves already must not overlap: a quantum at a time between two
looks at the sockets, and never concurrently with a real-time run. What pipelines need is imported
by the first one, so no other start pays for it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from brisk.errors import BriskError, InternalError
from brisk.runtime.models.entry import LoadOutcome, LoadState, SessionEntry
from brisk.runtime.sessions.session import Session

if TYPE_CHECKING:
    from brisk.runtime.pipelines.session import PipelineSession

QUANTUM_NS = 1_000_000


class PipelineLoads:
    """The loads of pipelines; ``tell`` takes their outcomes. Used by the worker's main thread."""

    def __init__(self, tell: Callable[[LoadOutcome], None]) -> None:
        self._tell = tell
        self._waiting: list[SessionEntry] = []
        """The pipelines that wait for their networks."""
        self.tried: deque[tuple[SessionEntry, PipelineSession, Iterator[None]]] = deque()
        """The pipelines under trial, one after the other, with the segments of the trial runs."""

    def add(self, entry: SessionEntry) -> None:
        self._waiting.append(entry)
        self.assemble()

    def drop(self, entry: SessionEntry) -> None:
        """Forget ``entry``, which no binding waits for any more."""
        self._waiting = [each for each in self._waiting if each is not entry]
        self.tried = deque(each for each in self.tried if each[0] is not entry)

    def assemble(self) -> None:
        """Queue trials of pipelines whose networks are all loaded; fail those that miss one."""
        if not self._waiting:
            return
        from brisk.runtime.pipelines.assembly import assemble, try_pipeline

        for entry in list(self._waiting):
            sessions = {
                path: network.session
                for path, network in entry.networks.items()
                if isinstance(network.session, Session) and network.state >= LoadState.LOADED
            }
            has_failed = any(network.error for network in entry.networks.values())
            if len(sessions) < len(entry.networks) and not has_failed:
                continue
            self._waiting.remove(entry)
            assert entry.pipeline is not None
            try:
                for words, path in entry.pipeline.networks:
                    if (error := entry.networks[path].error) is not None:
                        raise type(error)(f"{words}: {error}")
                session = assemble(entry.pipeline, sessions, entry.labels, entry.asked_ns)
            except BriskError as error:
                self._tell(LoadOutcome(entry, None, error))
            else:
                self.tried.append((entry, session, try_pipeline(session)))

    def advance(self) -> None:
        """Run segments of trials for a quantum; report the outcome of each that has ended."""
        until_ns = time.monotonic_ns() + QUANTUM_NS
        while self.tried and time.monotonic_ns() < until_ns:
            entry, session, segments = self.tried[0]
            try:
                next(segments)
                continue
            except StopIteration:
                outcome = LoadOutcome(entry, session, None)
            except BriskError as error:
                outcome = LoadOutcome(entry, None, error)
            except Exception as error:  # noqa: BLE001  # any error must reach the requesters
                text = f"the trial run failed: {type(error).__name__}: {error}"
                outcome = LoadOutcome(entry, None, InternalError(text))
            self.tried.popleft()
            self._tell(outcome)
