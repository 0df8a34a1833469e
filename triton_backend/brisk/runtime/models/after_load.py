"""What becomes of a session after it can run: warm kernels between requests, its learned caches,
then its artefact, which takes over when it has been made.

Solutions that a start passes over are loaded when the worker has nothing to run, and a session's
new frames get them all at once (PASK VI, NNV12 3.5).
"""

from __future__ import annotations

import functools
import gc
import queue
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from brisk.errors import BriskError
from brisk.graph.files.mapping import make_private
from brisk.runtime.early_exit.cache_watch import CacheWatch
from brisk.runtime.log import say
from brisk.runtime.models.artefact_use import ArtefactUse
from brisk.runtime.models.kinds.background_prepare import SegmentPreparer
from brisk.runtime.models.kinds.segment_session import SegmentSession
from brisk.runtime.models.reclaim import give_back
from brisk.runtime.models.session import Session
from brisk.runtime.preemption.lower_priority import standing_back
from brisk.runtime.ready import import_what_files_need
from brisk.runtime.worker.idle import Quiet
from brisk.segments.table import LayerTable
from brisk.segments.timeline import EventKind
from brisk.telemetry import count, metrics
from brisk.telemetry.events import SPANS

LONGEST_PAUSE_S = 0.1
"""What each 2 MiB of a model file wait for a gap between requests before they are copied."""

_LANES_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class _Care:
    """``until_s``: how long what is not urgent waits for calm."""

    session: Session
    labels: tuple[str, str]
    stands_back: bool
    until_s: float


class _UpkeepTask(NamedTuple):
    """Of the model at ``path``."""

    perform: Callable[[], None]
    path: Path
    stands_back: bool


class Upkeep:
    """One thread, in the order in which sessions came."""

    def __init__(
        self,
        device: str,
        threads: int,
        artefacts: ArtefactUse,
        caches: CacheWatch,
        quiet: Quiet,
    ) -> None:
        self._quiet = quiet
        self._caches = caches
        self._preparer: SegmentPreparer | None = None
        if artefacts is ArtefactUse.BUILD and device == "cpu":
            self._preparer = SegmentPreparer(threads)
        self._tasks: queue.SimpleQueue[_UpkeepTask] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="brisk-upkeep", daemon=True).start()

    def look_after(
        self,
        session: Session,
        labels: tuple[str, str],
        stands_back: bool = False,
    ) -> None:
        """``labels``: model and version that its start is counted under. ``stands_back``: on what
        processors others leave.
        """
        care = _Care(session, labels, stands_back, self._quiet.expect())
        perform = functools.partial(self._look_after, care)
        self._tasks.put(_UpkeepTask(perform, session.path, stands_back))

    def _run(self) -> None:
        while True:
            task = self._tasks.get()
            try:
                standing_back(task.perform) if task.stands_back else task.perform()
            except Exception as error:  # noqa: BLE001  # other sessions need this thread
                say(f"{task.path}: {type(error).__name__}: {error}")
            del task  # a session that nobody needs any more must not live on here

    def _look_after(self, care: _Care) -> None:
        session, table = care.session, care.session.table
        while not table.wait(_LANES_LOOK_S):
            if table.is_closed:
                return
        with session.settling():
            if not session.starts_with_substitutes():  # else in the first gaps between requests
                self._quiet.await_calm(care.until_s)
            may_go_on = self._between(table, care.until_s)
            is_warm = _succeeds(session, lambda: session.load_warm(may_go_on))
            self._quiet.await_calm(care.until_s)  # a start is for its first requests
            report_start(session, care.labels)
            caches = self._caches.open(session) if is_warm else None
            session.awaits_artefact = self._preparer is not None and session.wants_artefact
        if caches is not None and not table.is_closed:
            self._caches.serve(session, caches)
        if self._tasks.empty():  # nothing waits for it
            make_private(self._pause)
            self._pause()
            give_back()
            import_what_files_need()  # for the next load, which may be of another kind
        if session.awaits_artefact and self._preparer is not None:
            assert isinstance(session, SegmentSession)
            self._prepare(self._preparer, session, care.stands_back)

    def _prepare(
        self, preparer: SegmentPreparer, session: SegmentSession, stands_back: bool
    ) -> None:
        """Have the prepared form made; it is adopted where the session still lives by then."""
        reference, path = weakref.ref(session), session.path

        def tell(is_there: bool) -> None:
            perform = functools.partial(self._adopt, reference, is_there)
            self._tasks.put(_UpkeepTask(perform, path, stands_back))

        preparer.build_later(path, session.taps, tell)

    def _adopt(self, reference: weakref.ref[SegmentSession], is_there: bool) -> None:
        """Let the prepared form take over, between requests, and give back what it replaces.

        ``is_there``: else it will not be.
        """
        session = reference()
        if session is None or session.table.is_closed:
            return
        with session.settling():
            session.awaits_artefact = False
            if not is_there:
                return
            may_go_on = self._between(session.table, self._quiet.expect())
            if _succeeds(session, lambda: session.adopt_prepared(may_go_on)):
                self._quiet.pause(LONGEST_PAUSE_S)
                gc.collect()
                give_back()

    def _pause(self) -> None:
        """For a gap between requests, unless another session waits to be looked after."""
        if self._tasks.empty():
            self._quiet.pause(LONGEST_PAUSE_S)

    def _between(self, table: LayerTable[Any], until_s: float) -> Callable[[], bool]:
        """Whether the session is still wanted; blocks for a gap between requests, ``until_s`` at
        most.
        """

        def may_go_on() -> bool:
            self._quiet.await_gap(until_s)
            return not table.is_closed

        return may_go_on


def _succeeds(session: Session, work: Callable[[], bool]) -> bool:
    try:
        return work()
    except BriskError as error:
        say(f"{session.path}: kept on the solutions it started with: {error}")
        return False


# What a model's start came to, counted once all its parts are loaded; its stages as spans.


def report_start(session: Session, labels: tuple[str, str]) -> None:
    """Once for each session, under the model and version of ``labels``."""
    origin = session.origin
    count(metrics.STARTS, (*labels, origin))
    timeline = session.recorder.timeline(time.perf_counter_ns())
    for kind in EventKind:
        if total_ns := timeline.total_ns(kind):
            count(metrics.START_SECONDS, (*labels, origin, kind.value), total_ns)
    made = [event for event in timeline.events if event.kind is EventKind.CREATE]
    for where, stolen in (("lane", False), ("stolen", True)):
        number = sum(event.stolen is stolen for event in made)
        count(metrics.LOADED_LAYERS, (*labels, origin, where), number)
    # CLOCK_MONOTONIC is what both of Python's clocks read.
    for event in timeline.events:
        name = event.kind.value if event.layer is None else f"{event.kind.value} {event.layer}"
        SPANS.add(event.lane, name, event.start_ns, event.end_ns, str(session.path))
