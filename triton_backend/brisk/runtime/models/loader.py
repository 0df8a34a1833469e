"""The stages of a load, from its request to the last work that is done for its session.

Each stage, its thread, and the state of the entry after it:

1. ``load``, the worker's main thread: the load is queued; the most urgent goes first
   (``LoadQueue``). QUEUED.
2. ``_load``, the loader thread: the session is made runnable (``load_session``): its prepared form
   is mapped, or its file read and cut. PARSING, then RUNNABLE: the worker takes the
   ``LoadOutcome``.
3. The session's own loader threads load its segments; the last one reports it. LOADED, and a
   ``LoadCompletion``. For a model whose files still arrive, ``LoadArrival`` reports progress.
4. ``_finish``, the follow-up thread, once all is loaded and the worker is idle: warm kernels take
   over, and learned caches are read. SETTLED, unless a prepared form is to be made.
5. ``SegmentPreparer``: a process makes the prepared form, for this session and the next start.
6. ``_adopt``, the follow-up thread: the prepared form takes over between requests. SETTLED.

Solutions that a start skips are loaded while the worker has nothing to run, and a session's new
frames get them all at once (PASK VI, NNV12 3.5). When its last user leaves, the main thread closes
the session (``SessionTable``), and the loader thread gives its memory back.
"""

from __future__ import annotations

import gc
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from brisk.errors import ArtefactError, BriskError, InternalError, InvalidModelError
from brisk.graph.files.mapping import make_private
from brisk.os_priority import at_loading_priority
from brisk.runtime.early_exit.cache_watch import CacheWatch
from brisk.runtime.log import LOGGER
from brisk.runtime.memory import give_back
from brisk.runtime.models.background_prepare import PreparationTask, SegmentPreparer
from brisk.runtime.models.entry import (
    LoadArrival,
    LoadCompletion,
    LoadOutcome,
    LoadState,
    Outcome,
    SessionEntry,
)
from brisk.runtime.models.load_queue import LoadQueue
from brisk.runtime.models.load_watch import LoadWatch
from brisk.runtime.models.yielding import Activity, LoneLoad, Yielding, tidy_up
from brisk.runtime.sessions.open_session import import_what_files_need, load_session
from brisk.runtime.sessions.session import Session
from brisk.runtime.settings import ArtefactUse
from brisk.segments.table import EXECUTOR, SegmentTable
from brisk.segments.timeline import EventKind
from brisk.telemetry import count, metrics
from brisk.telemetry.events import SPANS

LOADS = "load lane"
"""The trace's lane of the spans of loads."""

SLOW_S = 30.0
"""A session that takes longer to finish than this is slow, and others do not wait for it; it may
be waiting for the worker to be idle."""

LONGEST_PAUSE_S = 0.1
"""The longest that each 2 MiB of a model file wait for an idle worker before they are copied."""

LONGEST_REST_S = 2.0
"""The most that requests, however many, delay finishing a session after the one before it."""

_LANES_LOOK_S = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class FollowUp:
    """Work for an entry that no request waits for."""

    entry: SessionEntry
    work: Callable[[], None]


class Loader:
    """Loads the most urgent model first, then in the order asked. Follow-up work is done in the
    order in which sessions came. Each of the two goes one at a time, unless one takes long.

    ``wake`` is called when ``outcomes`` has one, which the worker takes; a completion comes after
    its session. ``lone``: whether the worker may begin a run.
    """

    def __init__(
        self,
        device: str,
        threads: int,
        wake: Callable[[], None],
        artefacts: ArtefactUse,
        caches: CacheWatch,
        longest_s: float,
        activity: Activity,
    ) -> None:
        """Start the threads. ``longest_s``: the longest time of a load. ``activity``: what the
        worker computes."""
        self._device = device
        self._threads = threads
        self._wake = wake
        self._artefacts = artefacts
        self._caches = caches
        self._longest_s = longest_s
        self.outcomes: deque[Outcome] = deque()
        self.lone = LoneLoad(wake, activity)
        self.watch = LoadWatch(longest_s)
        self._yielding = Yielding(activity)
        self._preparer: SegmentPreparer | None = None
        if artefacts is ArtefactUse.BUILD and device == "cpu":
            self._preparer = SegmentPreparer(threads)
        self._loads: LoadQueue[SessionEntry | None] = LoadQueue()
        """Entries to load; None: give memory back."""
        self._later: LoadQueue[FollowUp] = LoadQueue(SLOW_S)
        self._later.serve(self._do_later, "brisk-after-load")
        self._loads.serve(self._do_load, "brisk-loader")

    # --- requests for loads: the worker's main thread -----------------------------------------

    def load(self, entry: SessionEntry) -> None:
        """Queue the load of a session, as urgent as its first requester."""
        self._loads.put(entry, entry.requester.job_class)

    def raise_priority(self, entry: SessionEntry, job_class: str) -> None:
        """Raise the priority of a load that a request of ``job_class`` waits for."""
        self._loads.raise_priority(entry, job_class)

    def drop(self, entry: SessionEntry) -> None:
        """Leave a load out that nobody needs any more, unless it has begun."""
        self._loads.discard(entry)

    def make_narrow(self, entry: SessionEntry) -> None:
        """Queue the making of one-thread sessions for an entry that is settled."""
        self._later.put(FollowUp(entry, partial(_make_narrow, entry)), None)

    def give_memory_back(self) -> None:
        """Return freed memory to the system, after the loads asked for so far."""
        self._loads.put(None, None)

    def tell(self, outcome: Outcome) -> None:
        """Report an outcome to the worker; any thread may call this."""
        self.outcomes.append(outcome)
        self._wake()

    def _give_up(self, entry: SessionEntry) -> None:
        """Report to the requesters that the load takes too long. If it still ends, its result is
        dropped."""
        if entry.state < LoadState.RUNNABLE:
            text = (
                f"loading {entry.path} takes longer than {self._longest_s:g} s (BRISK_MAX_LOAD_S)"
            )
            self.outcomes.append(LoadOutcome(entry, None, InvalidModelError(text)))

    # --- made runnable: the loader thread -------------------------------------------------------

    def _do_load(self, entry: SessionEntry | None) -> None:
        if entry is not None:
            watched = partial(self.watch.over, f"loading {entry.path}", lambda: entry.is_needed)
            with watched(lambda: self._give_up(entry), entry.path):
                self._load(entry)
        elif not tidy_up(self._yielding, self._loads.await_task):
            self.give_memory_back()

    def _load(self, entry: SessionEntry) -> None:
        begin_ns = time.monotonic_ns()
        is_lone = entry.requester.strikes > 0
        if is_lone:
            self.lone.enter()
        session = self._made_runnable(entry)
        name = f"load {entry.path.name}"
        SPANS.add(LOADS, name, begin_ns, time.monotonic_ns(), str(entry.path))
        if isinstance(session, BriskError):
            if is_lone:
                self.lone.leave()
            self.tell(LoadOutcome(entry, None, session))
            return
        # Set here, before any loader thread can report that the load has gone further.
        entry.reach(LoadState.RUNNABLE)
        session.table.when_loaded(partial(entry.reach, LoadState.LOADED))
        session.table.when_left(entry.runs_short)
        arrival = session.arrival
        if is_lone and arrival is None:
            self.lone.go_on_in(session.table)
        elif is_lone:  # no run waits for a model whose files still arrive
            self.lone.leave()
        self.tell(LoadOutcome(entry, session, None))
        # Registered after the outcome is reported, so that the completion comes after it.
        for register in (session.table.when_loaded, session.table.when_left):
            register(lambda: self.tell(LoadCompletion(entry)))
        if arrival is None:
            self._is_here(entry, session)
            return
        arrival.while_opening(entry.opens)
        arrival.when_changed(lambda: self.tell(LoadArrival(entry)))
        arrival.when_whole(lambda: self._is_here(entry, session))

    def _made_runnable(self, entry: SessionEntry) -> Session | BriskError:
        """Return the session, or the error of its load."""
        entry.begin()
        load = partial(
            load_session,
            *(entry.path, self._device, self._threads),
            None if self._artefacts is ArtefactUse.OFF else _reject,
            self._yielding.yield_to_urgent,
            entry.requester.tuning,
            takes_learned=entry.aim is not None,
        )
        try:
            return at_loading_priority(load) if entry.has_low_priority else load()
        except BriskError as error:
            return error
        except Exception as error:  # noqa: BLE001  # any error of a load must reach its requesters
            failed = InternalError(f"loading {entry.path} failed: {type(error).__name__}: {error}")
            failed.__cause__ = error  # it may be a lack of memory
            return failed

    def _is_here(self, entry: SessionEntry, session: Session) -> None:
        """Queue what follows once all files are here, if it is still wanted. Any thread."""
        self.watch.follow_lanes(entry.path, session.table)
        if not session.table.is_closed:
            finish = partial(self._finish, entry, session, self._yielding.expect())
            self._later.put(FollowUp(entry, finish), None)

    # --- finished: the follow-up thread ---------------------------------------------------------

    def _do_later(self, task: FollowUp) -> None:
        entry = task.entry
        try:
            what = f"looking after {entry.path}"
            with self.watch.over(what, lambda: entry.is_needed, model=entry.path):
                if entry.has_low_priority:
                    worked_s = at_loading_priority(lambda: _timed(task.work))
                else:
                    worked_s = _timed(task.work)
            if not self._later.is_empty():
                self._yielding.rest(worked_s, LONGEST_REST_S)
        except Exception as error:  # noqa: BLE001  # other sessions need this thread
            LOGGER.warning(f"{entry.path}: {type(error).__name__}: {error}")

    def _finish(self, entry: SessionEntry, session: Session, until_s: float) -> None:
        """Do what follows the load that made ``session``. ``until_s``: how long work that is not
        urgent waits for the worker to be idle."""
        table = session.table
        while not table.wait(_LANES_LOOK_S):
            if table.is_closed:
                return
            if not table.is_left_to_lanes:
                table.when_loaded(lambda: self._is_here(entry, session))
                return
        preparer: SegmentPreparer | None = None
        caches, is_warm = None, False
        try:
            if not session.starts_with_substitutes:  # else from the first idle moment on
                self._yielding.await_calm(until_s)
            may_go_on = self._between(table, until_s)
            is_warm = _succeeds(session, lambda: session.load_warm(may_go_on))
            self._yielding.await_calm(until_s)  # a start serves its first requests before this
            report_start(session, entry.labels)
            caches = self._caches.open(session, entry.aim) if is_warm else None
            preparer = self._preparer if session.wants_artefact else None
        finally:
            if preparer is None:
                entry.reach(LoadState.SETTLED)
        if caches is not None and not table.is_closed:
            self._caches.serve(session, caches, entry.aim)
        elif is_warm and caches is None and not table.is_closed:
            self._caches.collect(session, entry.aim)
        if self._later.is_empty():  # no other session waits for this
            make_private(self._pause)
            self._pause()
            give_back()
            import_what_files_need()  # the next load may be of another kind of file
        if preparer is not None:
            preparer.build_later(self._preparation(entry, session))

    def _preparation(self, entry: SessionEntry, session: Session) -> PreparationTask:
        """Return the task that makes the session's prepared form; it keeps no session alive."""
        reference = weakref.ref(session)

        def is_wanted() -> bool:
            return (user := reference()) is not None and not user.table.is_closed

        def tell(is_there: bool) -> None:
            self._later.put(FollowUp(entry, partial(self._adopt, entry, is_there)), None)

        return PreparationTask(session.path, session.taps, is_wanted, tell)

    def _adopt(self, entry: SessionEntry, is_there: bool) -> None:
        """Let the prepared form take over between requests, and free what it replaces.
        ``is_there``: whether it has been made; if not, it will not be."""
        session = entry.session
        if not isinstance(session, Session) or session.table.is_closed:
            return  # the session is no longer needed
        try:
            if not is_there:
                return
            may_go_on = self._between(session.table, self._yielding.expect())
            if _succeeds(session, lambda: session.adopt_prepared(may_go_on)):
                _report_lookups(session, entry.labels)
                self._yielding.pause(LONGEST_PAUSE_S)
                gc.collect()
                give_back()
        finally:
            entry.reach(LoadState.SETTLED)

    def _pause(self) -> None:
        """Wait for an idle worker, unless another session waits to be finished."""
        if self._later.is_empty():
            self._yielding.pause(LONGEST_PAUSE_S)

    def _between(self, table: SegmentTable[Any], until_s: float) -> Callable[[], bool]:
        """Return a function that waits for an idle worker, ``until_s`` at most, and returns
        whether the session is still wanted.
        """

        def may_go_on() -> bool:
            self._yielding.await_gap(until_s)
            return not table.is_closed

        return may_go_on


def _timed(work: Callable[[], None]) -> float:
    """Do the work; return its processor time in the calling thread, in seconds."""
    begun_s = time.thread_time()
    work()
    return time.thread_time() - begun_s


def _reject(error: ArtefactError) -> None:
    LOGGER.warning(f"{error}; using the model file instead")


def _make_narrow(entry: SessionEntry) -> None:
    session = entry.session
    if not isinstance(session, Session) or session.table.is_closed or session.narrow:
        return
    session.narrow = session.open_narrow()
    if session.narrow is not None:
        LOGGER.info(f"model '{entry.requester.name}': its requests crowd, runs go on side by side")


def _succeeds(session: Session, work: Callable[[], bool]) -> bool:
    try:
        return work()
    except BriskError as error:
        LOGGER.warning(f"{session.path}: kept on the solutions it started with: {error}")
        return False


# The figures of a model's start, counted once all its segments are loaded; its stages as spans.


def report_start(session: Session, labels: tuple[str, str]) -> None:
    """Count a session's start under the model and version of ``labels``. Called once a session."""
    origin = session.origin
    count(metrics.STARTS, (*labels, origin))
    events = session.table.recorder.events()
    for kind in EventKind:
        if total_ns := sum(each.end_ns - each.start_ns for each in events if each.kind is kind):
            count(metrics.START_SECONDS, (*labels, origin, kind.value), total_ns)
    creations = [event for event in events if event.kind is EventKind.CREATE]
    for where, stolen in (("lane", False), ("stolen", True)):
        number = sum((event.lane == EXECUTOR) is stolen for event in creations)
        count(metrics.LOADED_SEGMENTS, (*labels, origin, where), number)
    _report_lookups(session, labels)
    # Both of Python's clocks read CLOCK_MONOTONIC.
    for event in events:
        name = event.kind.value if event.segment is None else f"{event.kind.value} {event.segment}"
        SPANS.add(event.lane, name, event.start_ns, event.end_ns, str(session.path))


def _report_lookups(session: Session, labels: tuple[str, str]) -> None:
    for result, number in session.lookups.items():
        if number:
            count(metrics.STRUCTURE_LOOKUPS, (*labels, result), number)
