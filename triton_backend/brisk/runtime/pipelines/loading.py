"""Loads pipelines: each is assembled and tried when the last of its nodes' networks is loaded.

A network is a session shared with ordinary entries, so a trial runs while the worker waits for it:
a quantum at a time between two looks at the sockets, and none is begun while there is a real-time
request. Threads of their own compute the quanta: where a segment takes long, the worker goes on
concurrently. What pipelines need is imported by the first one, so no other start pays for it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from brisk.errors import BriskError, InternalError, InvalidModelError, UnavailableError
from brisk.os_priority import Precedence
from brisk.runtime.models.entry import LoadOutcome, LoadState, SessionEntry
from brisk.runtime.models.load_watch import LoadWatch
from brisk.runtime.sessions.session import Session
from brisk.segments.frame import RunControl, control

if TYPE_CHECKING:
    from brisk.runtime.pipelines.assembly import Trial
    from brisk.runtime.pipelines.session import PipelineSession

QUANTUM_NS = 1_000_000

LONG_S = 0.03
"""The longest that the worker waits for a quantum, of which the last segment may take long."""


class PipelineTrial:
    """A pipeline under trial. Used by the worker's main thread, but for ``compute``."""

    def __init__(
        self,
        entry: SessionEntry,
        session: PipelineSession,
        segments: Trial,
        watch: LoadWatch,
        give_up: Callable[[PipelineTrial], None],
    ) -> None:
        """``segments``: computes a segment for each item, and is sent whether it was aside.
        ``give_up``: called if a quantum takes too long."""
        self.entry = entry
        self.outcome: LoadOutcome | None = None
        """The trial's result, once it has ended."""
        self.is_dropped = False
        self._session = session
        self._segments = segments
        self._watch = watch
        self._give_up = give_up
        self._thread: threading.Thread | None = None
        """The thread that computes aside, if any."""
        self._was_aside: bool | None = None
        """Whether the last segment, if any, was computed aside."""
        self._control: RunControl | None = None
        self._helpers: frozenset[int] = frozenset()
        """The threads whose priority is lowered with that of the trial's thread."""

    @property
    def is_under_way(self) -> bool:
        """Whether a segment is computed beside the worker's main thread."""
        return self._thread is not None

    def compute(self) -> None:
        """Compute a quantum."""
        entry, until_ns = self.entry, time.monotonic_ns() + QUANTUM_NS
        self._control = control()
        what = f"the trial run of {entry.path}"
        with self._watch.over(what, lambda: entry.is_needed, lambda: self._give_up(self)):
            try:
                while time.monotonic_ns() < until_ns:
                    self._segments.send(self._was_aside)
                    self._was_aside = self.is_under_way
            except StopIteration:
                self.outcome = LoadOutcome(entry, self._session, None)
            except Exception as error:  # noqa: BLE001  # any error must reach the requesters
                self.outcome = LoadOutcome(entry, None, _reported(error, "the trial run"))

    def advance(self, precedence: Precedence) -> None:
        """Let a thread compute a quantum. If that takes long, it goes on aside.

        Precondition: it is not under way.
        """
        thread = threading.Thread(target=self.compute, name="brisk-trial", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no thread left, which other models survive
            text = f"the trial run of {self.entry.path} cannot go on: {error}"
            self.outcome = LoadOutcome(self.entry, None, UnavailableError(text))
            return
        thread.join(LONG_S)
        if thread.is_alive() and thread.native_id is not None:
            self._thread, self._helpers = thread, precedence.stand_aside(thread.native_id)

    def collect(self, precedence: Precedence) -> None:
        """Take back the thread that computes aside if it has ended."""
        if self._thread is not None and not self._thread.is_alive():
            precedence.rejoin(self._helpers)
            self._thread, self._helpers = None, frozenset()

    def drop(self) -> None:
        """Let nobody be told of the outcome, and ask a segment under way to end."""
        self.is_dropped = True
        if self._thread is not None and self._control is not None:
            self._control.end()


class PipelineLoads:
    """The loads of pipelines; ``tell`` takes their outcomes. Used by the worker's main thread."""

    def __init__(
        self,
        tell: Callable[[LoadOutcome], None],
        watch: LoadWatch,
        precedence: Precedence | None = None,
    ) -> None:
        """``watch``: the watch of loads. ``precedence`` None: trials are computed by the calling
        thread, which alone may use the device."""
        self._tell = tell
        self._watch = watch
        self._precedence = precedence
        self._waiting: list[SessionEntry] = []
        """The pipelines that wait for their networks."""
        self.tried: deque[PipelineTrial] = deque()
        """The pipelines under trial, one after the other."""

    @property
    def is_under_way(self) -> bool:
        """Whether a segment of a trial is computed beside the worker's main thread."""
        return bool(self.tried) and self.tried[0].is_under_way

    def add(self, entry: SessionEntry) -> None:
        self._waiting.append(entry)
        self.assemble()

    def drop(self, entry: SessionEntry) -> None:
        """Forget ``entry``, which no binding waits for any more."""
        self._waiting = [each for each in self._waiting if each is not entry]
        for trial in [each for each in self.tried if each.entry is entry]:
            trial.drop()
            if not trial.is_under_way:
                self.tried.remove(trial)

    def _give_up(self, trial: PipelineTrial) -> None:
        """Report to the requesters that the trial takes too long."""
        self.drop(trial.entry)
        text = (
            f"the trial run of {trial.entry.path} takes longer than {self._watch.longest_s:g} s "
            "(BRISK_MAX_LOAD_S)"
        )
        self._tell(LoadOutcome(trial.entry, None, InvalidModelError(text)))

    def assemble(self) -> None:
        """Queue trials of pipelines whose networks are all loaded; fail those that miss one.

        A trial loads what memory or files were short for.
        """
        if not self._waiting:
            return
        from brisk.runtime.pipelines.assembly import assemble, try_pipeline

        for entry in list(self._waiting):
            sessions = {
                path: session
                for path, network in entry.networks.items()
                if isinstance(session := network.session, Session)
                and (network.state >= LoadState.LOADED or session.table.is_left_to_executors)
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
            except Exception as error:  # noqa: BLE001  # any error must reach the requesters
                self._tell(LoadOutcome(entry, None, _reported(error, "the pipeline's assembly")))
            else:
                entry.begin()  # networks that others use may all have been loaded before
                segments = try_pipeline(session)
                self.tried.append(
                    PipelineTrial(entry, session, segments, self._watch, self._give_up)
                )

    def advance(self) -> None:
        """Compute a quantum of a trial, unless one is under way; report the outcome if it has
        ended. A segment that takes long is not waited for: ``collect`` finds its end."""
        trial = self.tried[0]
        if self._precedence is None:
            trial.compute()
        elif not trial.is_under_way:
            trial.advance(self._precedence)
        self.collect()

    def collect(self) -> bool:
        """Report the outcome of a trial that has ended. Return whether one is left.

        Precondition: there is one.
        """
        trial = self.tried[0]
        if self._precedence is not None:
            trial.collect(self._precedence)
        if trial.is_under_way:
            return True
        if trial.is_dropped:
            self.tried.popleft()
        elif trial.outcome is not None:
            self.tried.popleft()
            self._tell(trial.outcome)
        return bool(self.tried)


def _reported(error: Exception, what: str) -> BriskError:
    """Return ``error`` as one that is reported to the requesters; ``what`` has failed of it."""
    if isinstance(error, BriskError):
        return error
    failed = InternalError(f"{what} failed: {type(error).__name__}: {error}")
    failed.__cause__ = error  # it may be a lack of memory
    return failed
