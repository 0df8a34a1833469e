"""Runs that go on concurrently, each on one processor, while enough requests wait to fill them.

The threads of one run wait for each other after every operator; runs on one thread each do not.
While requests crowd, the leading thread therefore gives runs to *companions* and takes one itself,
all of *narrow* sessions, which have one thread. Each of these runs takes longer than alone on all
processors, and all together are done sooner.

Concurrent runs are of one class. Real-time requests with a deadline run one after the other: the
first of two would otherwise be done later than alone.

A companion computes without the worker's baton (``Relay``), and takes it to answer what it has
computed and to begin the next run.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from weakref import WeakKeyDictionary

from brisk.runtime.models.table import SessionTable
from brisk.runtime.requests.batch import Run, RunsInProgress
from brisk.runtime.requests.table import Request, RequestTable
from brisk.runtime.sessions.session import Servable
from brisk.runtime.worker.relay import Relay, Step
from brisk.scheduling.job import more_urgent
from brisk.scheduling.job_class import JobClass
from brisk.scheduling.times import ProfileTable

LEAST_NS = 2_000_000
"""Shortest run, on all processors: a shorter one loses too much of its time to hand-overs."""

CALM_NS = 60_000_000_000
"""Idle time after the last real-time request before normal runs are concurrent: another request
would wait for them, or compute next to them, for longer."""

CROWDS, CROWDS_AGAIN = 20, 500
"""The number of times that a model's requests crowd before narrow sessions of it are asked for,
and before they are asked for again if they could not be made."""

IDLE_NS = 60_000_000_000
"""The time without a crowd after which a model's narrow sessions are removed."""


class SideBySide:
    """Gives runs to companions. Only the thread with the baton uses this; computing needs none.

    ``runs``: the companions' runs.
    ``steps``: the steps of these runs that are being computed.
    """

    def __init__(
        self,
        processors: int,
        relay: Relay,
        requests: RequestTable,
        profiles: ProfileTable,
        sessions: SessionTable,
        is_held: Callable[[], bool],
        runs: RunsInProgress,
        begin: Callable[[JobClass], Run | None],
        conclude: Callable[[Step], None],
        wake: Callable[[], None],
    ) -> None:
        """``processors``: the leader computes on one of these; 1: no runs are concurrent.
        ``is_held``: whether no run may begin, because of a load. ``runs``: the worker's.
        ``begin``: begins the next job of a class as a narrow run; returns None if it has failed at
        once. ``conclude``: answers what has been computed. ``wake``: ends the leader's rest.
        """
        self._processors = processors
        self._relay = relay
        self._requests = requests
        self._profiles = profiles
        self._sessions = sessions
        self._is_held = is_held
        self._begin = begin
        self._conclude = conclude
        self._wake = wake
        self._idle: list[SimpleQueue[Run]] = []
        """The queues where waiting companions find a run, one for each."""
        self._leading = runs.leading
        self.runs = runs.companions
        self.steps: list[Step] = []
        self._urgent_ns = -CALM_NS
        self._crowded_ns: WeakKeyDictionary[Servable, int] = WeakKeyDictionary()
        """The time when requests last crowded, by session that has narrow ones."""

    def note_urgent(self, now_ns: int) -> None:
        """Note that a real-time request is there."""
        self._urgent_ns = now_ns

    def share_out(self, now_ns: int) -> None:
        """Give runs to companions while requests crowd. Precondition: the leader computes nothing,
        and takes the next run for itself.
        """
        while len(self.runs) < self._processors - 1:
            first = self._requests.queue.peek()
            if first is None or not self._is_crowd(first, now_ns):
                return
            given = self._companion()
            if given is None:
                return
            run = self._begin(first.job_class)
            if run is None:
                self._idle.append(given)
                return
            self.runs.append(run)
            given.put(run)
        if (own := self._requests.queue.peek()) is not None:
            self._is_crowd(own, now_ns)  # the leader's own run is to be narrow, too

    def _is_crowd(self, first: Request, now_ns: int) -> bool:
        """Return whether a narrow run of ``first``, the next job, is to begin: whether the jobs of
        its class that wait (of all classes if it is a normal one) and the companions' runs are as
        many as the processors. Ask for narrow sessions that are missing.
        """
        queue, session, job_class = self._requests.queue, first.binding.session, first.job_class
        is_realtime = job_class is JobClass.REALTIME
        waiting = queue.waiting_of(job_class) if is_realtime else len(queue)
        if waiting + len(self.runs) < self._processors or session is None:
            return False
        if first.binding.model.batching or not (is_realtime or self._is_calm(first, now_ns)):
            return False
        if (self._profiles.run_ns(first.profile_key) or 0.0) < LEAST_NS:
            return False
        if session.narrow is None:
            session.crowds += 1
            if session.crowds >= CROWDS:
                is_asked = self._sessions.ask_for_narrow(first.binding)
                session.crowds = CROWDS - CROWDS_AGAIN if is_asked else 0
                if is_asked:
                    self._crowded_ns[session] = now_ns  # made too late for this crowd, perhaps
            return False
        self._crowded_ns[session] = now_ns
        return self.takes(first)

    def _is_calm(self, first: Request, now_ns: int) -> bool:
        """Return whether no real-time request would wait for ``first``, a normal one."""
        has_urgent = self._sessions.serves_realtime or now_ns - self._urgent_ns < CALM_NS
        return first.job_class is JobClass.NORMAL and not has_urgent

    def takes(self, job: Request) -> bool:
        """Return whether a run of ``job`` may be narrow; not if requests are joined instead. A job
        that was there when a worker died runs alone: a crash during two runs could be attributed
        to neither."""
        session = job.binding.session
        may_wait = job.job_class is JobClass.REALTIME and job.deadline_ns is None
        return (
            (may_wait or job.job_class is JobClass.NORMAL)
            and all(run.job_class is job.job_class for run in self.runs)
            and session is not None
            and session.narrow is not None
            and not job.binding.model.batching
            and not (job.record.is_replay or job.is_alone or job.sequence is not None)
            and (session.caches is None or not session.caches.were_brought)
        )

    def holds(self, job: Request) -> bool:
        """Return whether a run of ``job`` has to wait for companions, because it has to run alone
        (``takes``) or their runs are more urgent."""
        is_behind = any(more_urgent(run.jobs[0], job) for run in self.runs)
        return is_behind or (bool(self.runs) and job.record.is_replay)

    def look(self, now_ns: int) -> None:
        """Remove narrow sessions whose requests have not crowded for ``IDLE_NS``."""
        for session, crowded_ns in list(self._crowded_ns.items()):
            if now_ns - crowded_ns > IDLE_NS:
                session.narrow, session.crowds = None, 0
                del self._crowded_ns[session]

    # --- companions ---------------------------------------------------------------------------

    def _companion(self) -> SimpleQueue[Run] | None:
        """Return the queue of a companion that waits, or of a new one; None if the system has no
        thread for it."""
        if self._idle:
            return self._idle.pop()
        given: SimpleQueue[Run] = SimpleQueue()
        thread = threading.Thread(
            target=self._work, args=(given,), name="brisk-companion", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            return None
        assert thread.native_id is not None
        self._relay.threads.add(thread.native_id)
        return given

    def _work(self, given: SimpleQueue[Run]) -> None:
        """Compute, for ever, the runs found in ``given`` and those that follow them."""
        try:
            while True:
                run: Run | None = given.get()
                while run is not None:
                    run = self._compute(run, given)
        except BaseException:  # noqa: BLE001  # its requests would never be answered
            sys.excepthook(*sys.exc_info())
            os._exit(1)

    def _compute(self, run: Run, given: SimpleQueue[Run]) -> Run | None:
        """Compute and answer a run. Return the next one, or None if the companion is to wait."""
        step = Step(run, time.monotonic_ns(), threading.get_native_id(), is_aside=True)
        self.steps.append(step)
        try:
            while not run.frame.is_finished and step.ended_ns is None:
                run.frame.step()
        except Exception as error:  # noqa: BLE001  # it is reported to the clients
            step.error = error
        step.is_last = True
        with self._relay.baton:
            if step.ended_ns is not None:
                step.control.renew()
            self.steps.remove(step)
            self.runs.remove(run)
            self._conclude(step)
            following = self._following()
            if following is None:
                self._idle.append(given)
                if len(self._requests.queue):  # the next job may have been held until now
                    self._wake()
            else:
                self.runs.append(following)
        return following

    def _following(self) -> Run | None:
        """Begin and return a companion's next run, while the leader computes on one processor."""
        first = self._requests.queue.peek()
        leader_is_narrow = self._leading and self._leading[-1].is_narrow
        if first is None or self._is_held() or not (leader_is_narrow and self.takes(first)):
            return None
        if first.job_class is not self._leading[-1].job_class:
            return None
        is_normal = first.job_class is JobClass.NORMAL
        if is_normal and not self._is_calm(first, time.monotonic_ns()):
            return None
        return self._begin(first.job_class)
