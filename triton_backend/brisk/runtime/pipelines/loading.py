"""A pipeline in memory: its nodes' networks, each a session shared with ordinary entries; put
together when the last one is there, and tried.

The trial runs on the worker's main thread, because frames of a session that serves already must
not overlap, a quantum at a time between two looks at the sockets, and never beside a real-time
run. What pipelines need is imported by the first one: no other start pays for it.
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
    """Loads of pipelines, in the worker's main thread; ``tell`` takes their outcomes."""

    def __init__(self, tell: Callable[[LoadOutcome], None]) -> None:
        self._tell = tell
        self._waiting: list[SessionEntry] = []
        """The pipelines that wait for their networks."""
        self.tried: deque[tuple[SessionEntry, PipelineSession, Iterator[None]]] = deque()
        """One after the other."""

    def add(self, entry: SessionEntry) -> None:
        self._waiting.append(entry)
        self.assemble()

    def drop(self, entry: SessionEntry) -> None:
        """Nobody waits for it any more; an outcome that is on its way finds nobody."""
        self._waiting = [each for each in self._waiting if each is not entry]
        self.tried = deque(each for each in self.tried if each[0] is not entry)

    def assemble(self) -> None:
        """Have the pipelines tried whose networks are all there; fail those that miss one."""
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
        """Run segments of a trial for a quantum; tell the outcome of one that has ended."""
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
            except Exception as error:  # noqa: BLE001  # the askers must hear of it, whatever it is
                text = f"the trial run failed: {type(error).__name__}: {error}"
                outcome = LoadOutcome(entry, None, InternalError(text))
            self.tried.popleft()
            self._tell(outcome)
