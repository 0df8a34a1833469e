"""The load lane: one thread that makes sessions runnable while the worker goes on serving."""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brisk.errors import ArtefactError, BriskError, InternalError
from brisk.protocol.records import LoadModel
from brisk.runtime.early_exit.cache_watch import CacheWatch
from brisk.runtime.log import say
from brisk.runtime.models.after_load import Upkeep
from brisk.runtime.models.artefact_use import ArtefactUse
from brisk.runtime.models.load_queue import LoadQueue
from brisk.runtime.models.reclaim import tidy_up
from brisk.runtime.models.servable import Servable
from brisk.runtime.models.session import Session, load_session
from brisk.runtime.preemption.lower_priority import standing_back
from brisk.runtime.worker.batch import Run
from brisk.runtime.worker.idle import Quiet
from brisk.runtime.worker.lone_load import LoneLoad
from brisk.runtime.worker.tracing import LOADS
from brisk.scheduling.job import JobClass
from brisk.segments.table import LayerTable
from brisk.telemetry.events import SPANS


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """Exactly one of ``session`` and ``error``; ``ticket`` is the one given with the task."""

    ticket: int
    session: Servable | None
    error: BriskError | None


@dataclass(frozen=True, slots=True)
class LoadCompletion:
    """All layers of the session of ``ticket`` are loaded; nothing of its load runs any more."""

    ticket: int


@dataclass(frozen=True, slots=True)
class _LoadTask:
    ticket: int
    path: Path
    asker: LoadModel
    begin: Callable[[], None]
    end: Callable[[], None]
    stands_back: bool


LONGEST_S = 0.05
"""That one layer waits."""

_LOOK_S = 0.001


class Courtesy:
    """Loads that wait while a real-time request of another model computes.

    A load beside it takes processor time, memory bandwidth and, in its Python parts, the
    interpreter's lock. So its lanes stop between two layers, for a bounded time each, so that a
    load ends however many requests there are. ``attend`` is the worker's main thread's,
    ``give_way`` any lane's.
    """

    def __init__(
        self,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._urgent: LayerTable[Any] | None = None
        """Of the real-time run in progress; None: there is none, or it is a pipeline's."""
        self._clock_s = clock_s
        self._sleep = sleep

    def attend(self, runs: Sequence[Run]) -> None:
        """``runs``: those in progress, the last one computes."""
        self._urgent = None
        if runs and runs[-1].job_class is JobClass.REALTIME:
            session = runs[-1].jobs[0].payload.binding.session
            if session is not None:
                self._urgent = session.table

    def give_way(self, table: LayerTable[Any]) -> None:
        """Called by a lane of ``table`` before each layer. A run's own layers do not wait."""
        until_s = self._clock_s() + LONGEST_S
        while self._urgent not in (None, table) and self._clock_s() < until_s:
            if table.is_closed:
                return
            self._sleep(_LOOK_S)


class Loader:
    """Loads the most urgent first, then in the order asked.

    ``wake`` is called when an outcome waits in ``take``.
    """

    def __init__(
        self,
        device: str,
        threads: int,
        wake: Callable[[], None],
        artefacts: ArtefactUse,
        caches: CacheWatch,
    ) -> None:
        self._device = device
        self._threads = threads
        self.lone = LoneLoad(wake)
        self._wake = wake
        self._artefacts = artefacts
        self._tasks: LoadQueue[_LoadTask | None] = LoadQueue()
        self._memory_lock = threading.Lock()
        self._is_memory_asked_for = False
        self._outcomes: deque[LoadOutcome | LoadCompletion] = deque()
        self._courtesy = Courtesy()
        self._quiet = Quiet()
        self._upkeep = Upkeep(device, self._threads, artefacts, caches, self._quiet)
        threading.Thread(target=self._run, name="brisk-loader", daemon=True).start()

    def load(
        self,
        ticket: int,
        path: Path,
        asker: LoadModel,
        begin: Callable[[], None],
        end: Callable[[], None],
        stands_back: bool = False,
    ) -> int:
        """Ask for a session as urgently as ``asker`` needs it; a number for ``hurry``.

        What the load comes to is counted under the asker's name. ``begin`` is called in the load
        lane just before it starts, ``end`` wherever the last layer is loaded, before any request
        needs it. ``stands_back``: load on what processors others leave, its
        lanes too.
        """
        task = _LoadTask(ticket, path, asker, begin, end, stands_back)
        return self._tasks.put(task, asker.job_class)

    def hurry(self, number: int, job_class: str) -> None:
        """A request of ``job_class`` waits for this load."""
        self._tasks.hurry(number, job_class)

    def give_memory_back(self) -> None:
        """Return freed memory to the system, after the loads asked for so far.

        Asked for again before it is done it is done once: the lane stops it for whatever waits,
        and two of them would stop each other without end.
        """
        with self._memory_lock:
            if not self._is_memory_asked_for:
                self._is_memory_asked_for = True
                self._tasks.put(None, None)

    def attend(self, runs: Sequence[Run]) -> None:
        """``runs``: those in progress, which loads and what follows them are not to disturb.

        Called by the worker before and after each stretch of computing.
        """
        self._courtesy.attend(runs)
        self._quiet.attend(bool(runs))

    def tell(self, outcome: LoadOutcome | LoadCompletion) -> None:
        """Let ``take`` give an outcome, wherever it was made."""
        self._outcomes.append(outcome)
        self._wake()

    def take(self) -> LoadOutcome | LoadCompletion | None:
        """The next outcome; None where there is none. A completion comes after its session."""
        return self._outcomes.popleft() if self._outcomes else None

    def _run(self) -> None:
        while True:
            task = self._tasks.get()
            if task is not None:
                self._load(task)
                continue
            with self._memory_lock:
                self._is_memory_asked_for = False
            if not tidy_up(self._is_free):
                self.give_memory_back()

    def _is_free(self, timeout_s: float) -> bool | None:
        """Whether no request runs; None where a load is asked for, within the time-out."""
        if self._tasks.await_task(timeout_s):
            return None
        return not self._quiet.is_serving

    def _load(self, task: _LoadTask) -> None:
        """A call of its own: what it knows of a session must not outlive it in this thread."""
        begin_ns = time.monotonic_ns()
        perform = functools.partial(self._perform, task)
        is_lone = task.asker.strikes > 0
        if is_lone:
            self.lone.enter()
        session, error = standing_back(perform) if task.stands_back else perform()
        name = f"load {task.path.name}"
        SPANS.add(LOADS, name, begin_ns, time.monotonic_ns(), str(task.path))
        if session is not None:
            session.table.when_loaded(task.end)
        if is_lone and session is not None:
            self.lone.go_on_in(session.table)
        elif is_lone:
            self.lone.leave()
        self.tell(LoadOutcome(task.ticket, session, error))
        if session is not None:
            told = functools.partial(self.tell, LoadCompletion(task.ticket))
            session.table.when_loaded(told)
            labels = (task.asker.name, str(task.asker.version))
            self._upkeep.look_after(session, labels, task.stands_back)

    def _perform(self, task: _LoadTask) -> tuple[Session | None, BriskError | None]:
        """The session, or what is wrong."""
        task.begin()

        def reject(error: ArtefactError) -> None:
            say(f"{error}; using the model file instead")

        wanted = reject if self._artefacts is not ArtefactUse.OFF else None
        try:
            session = load_session(
                task.path,
                self._device,
                self._threads,
                wanted,
                self._courtesy.give_way,
                task.asker.tuning,
            )
        except BriskError as error:
            return None, error
        except Exception as error:  # noqa: BLE001  # whatever a load raises must reach its askers
            text = f"loading {task.path} failed: {type(error).__name__}: {error}"
            failed = InternalError(text)
            failed.__cause__ = error  # which may be a lack of memory
            return None, failed
        return session, None
