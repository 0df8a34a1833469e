"""The load lane, which makes sessions runnable while the worker goes on serving."""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from brisk.errors import ArtefactError, BriskError, InternalError, InvalidModelError
from brisk.os_priority import standing_back
from brisk.runtime.early_exit.cache_watch import CacheWatch
from brisk.runtime.log import LOGGER
from brisk.runtime.models.after_load import AfterLoad, tidy_up
from brisk.runtime.models.entry import LoadState, SessionEntry
from brisk.runtime.models.load_queue import LoadQueue
from brisk.runtime.models.load_watch import LoadWatch
from brisk.runtime.models.session import Servable, Session, load_session
from brisk.runtime.models.yielding import LoneLoad, Yielding
from brisk.runtime.settings import ArtefactUse
from brisk.runtime.worker.tracing import LOADS
from brisk.telemetry.events import SPANS


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """Exactly one of ``session`` and ``error``."""

    entry: SessionEntry
    session: Servable | None
    error: BriskError | None


@dataclass(frozen=True, slots=True)
class LoadCompletion:
    """All layers of the session are loaded; nothing of its load runs any more."""

    entry: SessionEntry


@dataclass(frozen=True, slots=True)
class LoadArrival:
    """What arrives of the session's files has come so far that its requests may run, or has not
    for so long that they are refused."""

    entry: SessionEntry


Outcome: TypeAlias = "LoadOutcome | LoadArrival | LoadCompletion"


class Loader:
    """Loads the most urgent first, then in the order asked.

    ``wake`` is called when there is one of ``outcomes``, which the worker takes; a completion
    comes after its session. ``yielding`` is told what the worker computes.
    """

    def __init__(
        self,
        device: str,
        threads: int,
        wake: Callable[[], None],
        artefacts: ArtefactUse,
        caches: CacheWatch,
        longest_s: float,
    ) -> None:
        """``longest_s``: that a load may take."""
        self._device = device
        self._threads = threads
        self.lone = LoneLoad(wake)
        self._wake = wake
        self._artefacts = artefacts
        self._tasks: LoadQueue[SessionEntry | None] = LoadQueue()
        """None: give memory back."""
        self.outcomes: deque[Outcome] = deque()
        self.yielding = Yielding()
        self._longest_s = longest_s
        self.watch = LoadWatch(longest_s)
        self._after_load = AfterLoad(device, threads, artefacts, caches, self.yielding, self.watch)
        self._tasks.serve(self._do, "brisk-loader")

    def load(self, entry: SessionEntry) -> None:
        """Ask for a session as urgently as its asker needs it."""
        self._tasks.put(entry, entry.asker.job_class)

    def hurry(self, entry: SessionEntry, job_class: str) -> None:
        """A request of ``job_class`` waits for this load."""
        self._tasks.hurry(entry, job_class)

    def make_narrow(self, entry: SessionEntry) -> None:
        """Sessions of one thread, for an entry that is settled."""
        self._after_load.make_narrow(entry)

    def give_memory_back(self) -> None:
        """Return freed memory to the system, after the loads asked for so far."""
        self._tasks.put(None, None)

    def tell(self, outcome: Outcome) -> None:
        """Any thread: an outcome, wherever it was made."""
        self.outcomes.append(outcome)
        self._wake()

    def _do(self, entry: SessionEntry | None) -> None:
        if entry is not None:
            what = f"loading {entry.path}"
            with self.watch.over(what, lambda: entry.is_needed, lambda: self._give_up(entry)):
                self._load(entry)
        elif not tidy_up(self.yielding, self._tasks.await_task):
            self.give_memory_back()

    def _load(self, entry: SessionEntry) -> None:
        begin_ns = time.monotonic_ns()
        make = functools.partial(self._make_runnable, entry)
        is_lone = entry.asker.strikes > 0
        if is_lone:
            self.lone.enter()
        session = standing_back(make) if entry.stands_back else make()
        name = f"load {entry.path.name}"
        SPANS.add(LOADS, name, begin_ns, time.monotonic_ns(), str(entry.path))
        if isinstance(session, BriskError):
            if is_lone:
                self.lone.leave()
            self.tell(LoadOutcome(entry, None, session))
            return
        # Set here, before any lane can say that the load has gone further.
        entry.reach(LoadState.RUNNABLE)
        session.table.when_loaded(functools.partial(entry.reach, LoadState.LOADED))
        arrival = session.arrival
        if is_lone and arrival is None:
            self.lone.go_on_in(session.table)
        elif is_lone:  # nobody waits for what arrives
            self.lone.leave()
        self.tell(LoadOutcome(entry, session, None))
        # Registered behind the outcome, so that the completion comes after it.
        session.table.when_loaded(functools.partial(self.tell, LoadCompletion(entry)))
        if arrival is None:
            self._look_after(entry, session)
            return
        arrival.while_opening(entry.opens)
        arrival.when_ripe(functools.partial(self.tell, LoadArrival(entry)))
        arrival.when_changed(functools.partial(self.tell, LoadArrival(entry)))
        arrival.when_whole(functools.partial(self._look_after, entry, session))

    def _look_after(self, entry: SessionEntry, session: Session) -> None:
        """All that the session's lanes read is here."""
        table = session.table
        self.watch.follow(
            f"loading parts of {entry.path}",
            lambda: not table.is_closed,
            lambda: not (table.is_loading or table.lanes_at_work),
        )
        self._after_load.look_after(entry, session)

    def _give_up(self, entry: SessionEntry) -> None:
        """Its load takes too long: who asked for it is told so. What it may still come to finds
        that nobody needs it."""
        if entry.state < LoadState.RUNNABLE:
            text = (
                f"loading {entry.path} takes longer than {self._longest_s:g} s (BRISK_MAX_LOAD_S)"
            )
            self.outcomes.append(LoadOutcome(entry, None, InvalidModelError(text)))

    def _make_runnable(self, entry: SessionEntry) -> Session | BriskError:
        """The session, or what is wrong."""
        entry.begin()

        def reject(error: ArtefactError) -> None:
            LOGGER.warning(f"{error}; using the model file instead")

        wanted = reject if self._artefacts is not ArtefactUse.OFF else None
        give_way, tuning = self.yielding.give_way, entry.asker.tuning
        try:
            return load_session(entry.path, self._device, self._threads, wanted, give_way, tuning)
        except BriskError as error:
            return error
        except Exception as error:  # noqa: BLE001  # whatever a load raises must reach its askers
            text = f"loading {entry.path} failed: {type(error).__name__}: {error}"
            failed = InternalError(text)
            failed.__cause__ = error  # which may be a lack of memory
            return failed
