"""What becomes of a session after it can run: warm kernels between requests, its learned caches,
then its artefact, which takes over when it has been made.

Solutions that a start passes over are loaded when the worker has nothing to run, and a session's
new frames get them all at once (PASK VI, NNV12 3.5). Behind sessions that have gone, memory is
given back.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import time
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

from brisk.errors import BriskError
from brisk.graph.files.mapping import make_private
from brisk.os_priority import standing_back
from brisk.runtime.early_exit.cache_watch import CacheWatch
from brisk.runtime.log import LOGGER
from brisk.runtime.models.background_prepare import SegmentPreparer
from brisk.runtime.models.entry import LoadState, SessionEntry
from brisk.runtime.models.load_queue import LoadQueue
from brisk.runtime.models.load_watch import LoadWatch
from brisk.runtime.models.session import Session
from brisk.runtime.models.yielding import LONGEST_WAIT_S, Yielding
from brisk.runtime.ready import import_what_files_need
from brisk.runtime.settings import ArtefactUse
from brisk.segments.table import EXECUTOR, LayerTable
from brisk.segments.timeline import EventKind
from brisk.telemetry import count, metrics
from brisk.telemetry.events import SPANS

SLOW_S = 30.0
"""From then on a session is slow to look after, and others do not wait; it may wait for calm."""

LONGEST_PAUSE_S = 0.1
"""What each 2 MiB of a model file wait for a gap between requests before they are copied."""

_LANES_LOOK_S = 1.0


class AfterLoad:
    """In the order in which sessions came, one at a time unless one takes long."""

    def __init__(
        self,
        device: str,
        threads: int,
        artefacts: ArtefactUse,
        caches: CacheWatch,
        yielding: Yielding,
        watch: LoadWatch,
    ) -> None:
        self._watch = watch
        self._yielding = yielding
        self._caches = caches
        self._preparer: SegmentPreparer | None = None
        if artefacts is ArtefactUse.BUILD and device == "cpu":
            self._preparer = SegmentPreparer(threads)
        self._tasks = LoadQueue[tuple[SessionEntry, Callable[[], None]]](SLOW_S)
        self._tasks.serve(self._do, "brisk-after-load")

    def look_after(self, entry: SessionEntry, session: Session) -> None:
        """``session`` is what the entry's load has come to."""
        perform = functools.partial(self._look_after, entry, session, self._yielding.expect())
        self._tasks.put((entry, perform), None)

    def make_narrow(self, entry: SessionEntry) -> None:
        """Its requests crowd: sessions for runs side by side."""
        self._tasks.put((entry, functools.partial(self._make_narrow, entry)), None)

    def _make_narrow(self, entry: SessionEntry) -> None:
        session = entry.session
        if not isinstance(session, Session) or session.table.is_closed or session.narrow:
            return
        session.narrow = session.open_narrow()
        if session.narrow is not None:
            LOGGER.info(f"model '{entry.asker.name}': its requests crowd, runs go on side by side")

    def _do(self, task: tuple[SessionEntry, Callable[[], None]]) -> None:
        entry, perform = task
        what = f"looking after {entry.path}"
        try:
            with self._watch.over(what, lambda: entry.is_needed):
                standing_back(perform) if entry.stands_back else perform()
        except Exception as error:  # noqa: BLE001  # other sessions need this thread
            LOGGER.warning(f"{entry.path}: {type(error).__name__}: {error}")

    def _look_after(self, entry: SessionEntry, session: Session, until_s: float) -> None:
        """``until_s``: how long what is not urgent waits for calm."""
        table = session.table
        while not table.wait(_LANES_LOOK_S):
            if table.is_closed:
                return
        preparer: SegmentPreparer | None = None
        caches, is_warm = None, False
        try:
            if not session.starts_with_substitutes:  # else in the first gaps between requests
                self._yielding.await_calm(until_s)
            may_go_on = self._between(table, until_s)
            is_warm = _succeeds(session, lambda: session.load_warm(may_go_on))
            self._yielding.await_calm(until_s)  # a start is for its first requests
            report_start(session, entry.labels)
            caches = self._caches.open(session, entry.aim) if is_warm else None
            preparer = self._preparer if session.wants_artefact else None
        finally:
            entry.reach(LoadState.SETTLED if preparer is None else LoadState.WARM)
        if caches is not None and not table.is_closed:
            self._caches.serve(session, caches, entry.aim)
        elif is_warm and entry.aim is not None:
            self._caches.collect(session, entry.aim)
        if self._tasks.is_empty():  # nothing waits for it
            make_private(self._pause)
            self._pause()
            give_back()
            import_what_files_need()  # for the next load, which may be of another kind
        if preparer is not None:

            def tell(is_there: bool) -> None:  # which keeps no session alive
                self._tasks.put((entry, functools.partial(self._adopt, entry, is_there)), None)

            known = weakref.ref(session)

            def is_wanted() -> bool:
                return (user := known()) is not None and not user.table.is_closed

            preparer.build_later(session.path, session.taps, is_wanted, tell)

    def _adopt(self, entry: SessionEntry, is_there: bool) -> None:
        """Let the prepared form take over, between requests, and give back what it replaces.

        ``is_there``: else it will not be.
        """
        session = entry.session
        if not isinstance(session, Session) or session.table.is_closed:
            return  # nobody needs it any more
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
        """For a gap between requests, unless another session waits to be looked after."""
        if self._tasks.is_empty():
            self._yielding.pause(LONGEST_PAUSE_S)

    def _between(self, table: LayerTable[Any], until_s: float) -> Callable[[], bool]:
        """Whether the session is still wanted; blocks for a gap between requests, ``until_s`` at
        most.
        """

        def may_go_on() -> bool:
            self._yielding.await_gap(until_s)
            return not table.is_closed

        return may_go_on


def _succeeds(session: Session, work: Callable[[], bool]) -> bool:
    try:
        return work()
    except BriskError as error:
        LOGGER.warning(f"{session.path}: kept on the solutions it started with: {error}")
        return False


# What a model's start came to, counted once all its parts are loaded; its stages as spans.


def report_start(session: Session, labels: tuple[str, str]) -> None:
    """Once for each session, under the model and version of ``labels``."""
    origin = session.origin
    count(metrics.STARTS, (*labels, origin))
    events = session.table.recorder.events()
    for kind in EventKind:
        if total_ns := sum(each.end_ns - each.start_ns for each in events if each.kind is kind):
            count(metrics.START_SECONDS, (*labels, origin, kind.value), total_ns)
    made = [event for event in events if event.kind is EventKind.CREATE]
    for where, stolen in (("lane", False), ("stolen", True)):
        number = sum((event.lane == EXECUTOR) is stolen for event in made)
        count(metrics.LOADED_LAYERS, (*labels, origin, where), number)
    _report_lookups(session, labels)
    # CLOCK_MONOTONIC is what both of Python's clocks read.
    for event in events:
        name = event.kind.value if event.layer is None else f"{event.kind.value} {event.layer}"
        SPANS.add(event.lane, name, event.start_ns, event.end_ns, str(session.path))


def _report_lookups(session: Session, labels: tuple[str, str]) -> None:
    for result, number in session.lookups.items():
        if number:
            count(metrics.STRUCTURE_LOOKUPS, (*labels, result), number)


# Memory is given back when sessions are gone, while no request waits for the interpreter.

SPARE_BYTES = 64 << 20
"""Of freed memory that the heap may keep: less is not worth what runs pay to have it again."""

_LOOK_S = 0.002


def tidy_up(yielding: Yielding, await_load: Callable[[float], bool]) -> bool:
    """Collect what is unreachable and return free memory to the system, while no request runs.

    ``await_load``: whether a load is asked for, within a time-out. Where it is, nothing is done,
    and the result is False.
    """
    until_s = time.monotonic() + LONGEST_WAIT_S
    while not await_load(_LOOK_S):
        if not yielding.is_serving or time.monotonic() > until_s:
            break
    else:
        return False
    gc.collect()
    give_back()
    return True


def give_back(spare: int = SPARE_BYTES) -> bool:
    """Return the heap's free memory to the system, if it is more than ``spare``.

    False, changing nothing, where it is not, or the C library cannot tell.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):  # glibc before 2.33, or another C library
        return False
    library.mallinfo2.restype = _Statistics
    if library.mallinfo2().fields[8] <= spare:
        return False
    library.malloc_trim(0)
    return True


class _Statistics(ctypes.Structure):
    """``struct mallinfo2``; its ninth field is ``fordblks``, bytes of the heap that are free."""

    _fields_: ClassVar = [("fields", ctypes.c_size_t * 10)]
