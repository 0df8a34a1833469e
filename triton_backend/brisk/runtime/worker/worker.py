"""The worker: one thread that reads, decides and computes, and a load lane beside it.

No lock is needed, and a request crosses no thread: what the socket brings is seen between two
layers, at most a quantum apart. Time-outs, cancellations and refusals therefore take
effect at the next layer boundary.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from brisk.os_priority import Precedence
from brisk.protocol.runtime_paths import Role
from brisk.runtime.early_exit.audits import Auditor, Audits
from brisk.runtime.early_exit.cache_watch import Adaptation, CacheWatch
from brisk.runtime.early_exit.sampling import Sampler
from brisk.runtime.log import say
from brisk.runtime.models.loader import Loader
from brisk.runtime.models.table import SessionTable
from brisk.runtime.pipelines.loading import PipelineLoads
from brisk.runtime.preemption.controller import PreemptionController
from brisk.runtime.preemption.gate import RECHECK_S
from brisk.runtime.requests.connections import Connections, retire_orphans
from brisk.runtime.requests.dispatcher import Dispatcher
from brisk.runtime.requests.table import RequestTable
from brisk.runtime.settings import Settings
from brisk.runtime.worker.batch import Batcher, Run, begin_run
from brisk.runtime.worker.completion import Completion
from brisk.runtime.worker.device import LayerQueue
from brisk.runtime.worker.introspection import Observation
from brisk.scheduling.job import JobClass
from brisk.scheduling.profile import ProfileTable

LOOK_INTERVAL_NS = 1_000_000_000
LONGEST_UNCHECKED_NS = 10_000_000_000  # where there is no moment without a run


class Worker:
    """Serves every peer of ``connections`` until none has been there for the idle time."""

    def __init__(
        self,
        connections: Connections,
        device: str,
        queues: Mapping[JobClass, LayerQueue],
        controller: PreemptionController,
        profiles: ProfileTable,
        settings: Settings,
        role: Role,
    ) -> None:
        if controller.alarm is not None:
            connections.watch(controller.alarm)
        self._connections = connections
        self._queues = queues
        adapts = role is Role.FOREGROUND
        caches = CacheWatch(Adaptation(settings.adaptation_s) if adapts else None)
        self._loader = Loader(
            device, settings.threads, connections.wake, settings.artefacts, caches
        )
        self._pipelines = PipelineLoads(self._loader.tell)
        self._controller = controller
        self._profiles = profiles
        self._requests = RequestTable(connections, settings.max_waiting, controller, profiles)
        self._batcher = Batcher(self._requests.queue, profiles)
        self._audits = Audits(Auditor())
        sampler = Sampler(settings.sampled_share, settings.sample_bytes)
        self._completion = Completion(
            connections, self._requests, self._batcher, controller, self._audits, sampler
        )
        self._is_held = False
        """The run on top waits for the gate."""
        self._stack = RunStack(controller)
        goes_first = role is Role.FOREGROUND and controller.policy.stands_back
        precedence = Precedence(settings.realtime_niceness if goes_first else 0, say)
        sessions = self._sessions = SessionTable(self._loader, self._pipelines, precedence)
        observation = Observation(
            *(role, device, settings.threads, connections),
            *(sessions, self._requests, self._stack.runs),
        )
        self._dispatcher = Dispatcher(connections, sessions, self._requests, observation)
        self._idle_exit_ns = int(settings.idle_exit_s * 1e9)
        self._last_peer_ns = self._looked_around_ns = time.monotonic_ns()

    @property
    def is_idle(self) -> bool:
        """True when nobody has been connected for the idle time."""
        if self._connections.peer_count:
            self._last_peer_ns = time.monotonic_ns()
            return False
        return time.monotonic_ns() - self._last_peer_ns >= self._idle_exit_ns

    def step(self) -> None:
        """Hear what has come, choose what runs, compute a quantum of it, answer what is done."""
        self._hear()
        self._try_pipelines()
        self._requests.expire()
        self._take_turn()
        self._loader.attend(self._stack.runs)
        self._run_top()
        self._loader.attend(self._stack.runs)
        self._look_around()

    def _hear(self) -> None:
        """Take in what peers, audits and the load lane have sent."""
        for event in self._connections.poll(self._patience_s()):
            self._dispatcher.take(event)
        self._is_held = False
        self._audits.settle()
        while (outcome := self._loader.take()) is not None:
            self._dispatcher.settle(outcome)

    def _run_top(self) -> None:
        """A quantum of the run on top of the stack, which leaves it when it is over."""
        top = self._stack.top
        if top is not None and self._advance(top):
            self._stack.end()

    def _try_pipelines(self) -> None:
        """A quantum of a loading pipeline's trial, unless a real-time job is there."""
        if not self._pipelines.is_trying or self._loader.lone.is_wanted:
            return
        present = [run.jobs[0] for run in self._stack.runs[-1:]]
        if (following := self._batcher.following()) is not None:
            present.append(following)
        if all(job.job_class is not JobClass.REALTIME for job in present):
            with self._queues[JobClass.NORMAL].issuing():
                self._pipelines.advance()

    def _patience_s(self) -> float:
        """How long ``poll`` may wait."""
        if self._is_held:
            return RECHECK_S
        if self._loader.lone.is_wanted:
            return 0.0 if self._stack.runs else RECHECK_S
        if self._stack.runs or self._pipelines.is_trying:
            return 0.0
        if len(self._batcher):
            return 0.0
        if self._connections.peer_count:
            return LOOK_INTERVAL_NS / 1e9
        return self._idle_exit_ns / 1e9

    def _take_turn(self) -> None:
        """Begin the next job if nothing runs, or if the policy says so."""
        if self._loader.lone.is_wanted:
            if not self._stack.runs:
                self._loader.lone.grant()
            return
        only, top = self._next_class(), self._stack.top
        following = self._batcher.following(only)
        if following is None:
            return
        owed = self._controller.owes_normal(time.monotonic_ns())
        takes_place = top is None or self._controller.policy.takes_place(
            following, top.jobs[0], normal_is_owed=owed
        )
        if takes_place and (run := self._begin_next(only)) is not None:
            self._stack.begin(run)

    def _next_class(self) -> JobClass | None:
        """Whose turn is next; None: that of the job that goes first."""
        if not self._controller.owes_normal(time.monotonic_ns()):
            return None
        return None if self._batcher.following(JobClass.NORMAL) is None else JobClass.NORMAL

    def _begin_next(self, only: JobClass | None) -> Run | None:
        """Begin the next job with those that may be joined to it; None where none can begin."""
        jobs = self._batcher.take(only)
        now_ns = time.monotonic_ns()
        try:
            with self._queues[jobs[0].job_class].issuing():
                return begin_run(jobs, self._profiles, now_ns)
        except Exception as error:  # noqa: BLE001  # the worker must outlive any request
            self._completion.fail(jobs, error)
            return None

    def _advance(self, run: Run) -> bool:
        """Run layers for a quantum; True where the run is over, answered or not."""
        now_ns = time.monotonic_ns()
        self._completion.fail_late(run, now_ns)
        if not run.is_wanted:
            return True
        queue = self._queues[run.job_class]
        try:
            with queue.issuing():
                if not run.frame.is_finished and not self._compute(run, queue, now_ns):
                    self._completion.answer_leaving(run)
                    return False
                if not queue.is_done():
                    return False
                self._completion.answer(run)
        except Exception as error:  # noqa: BLE001  # the worker must outlive any request
            self._completion.fail(run.jobs, error)
        return True

    def _compute(self, run: Run, queue: LayerQueue, now_ns: int) -> bool:
        """Issue layers for a quantum, until the queue is full or the next layer is held.

        True after the last one.
        """
        frame, controller = run.frame, self._controller
        until_ns = now_ns + controller.quanta_ns[run.job_class]
        while now_ns < until_ns and queue.has_room():
            if controller.holds(run, now_ns):
                self._is_held = True
                return False
            is_last = queue.issue(frame)
            done_ns = time.monotonic_ns()
            controller.layer_done(run, done_ns - now_ns)
            if is_last:
                return True
            now_ns = done_ns
        return False

    def _look_around(self) -> None:
        """What is looked after once a second, between runs where there is such a moment."""
        now_ns = time.monotonic_ns()
        passed_ns = now_ns - self._looked_around_ns
        if passed_ns < (LONGEST_UNCHECKED_NS if self._stack.runs else LOOK_INTERVAL_NS):
            return
        self._looked_around_ns = now_ns
        retire_orphans(self._connections, now_ns)
        self._sessions.forget_idle_sequences(now_ns)


# The worker's own runs: the last one computes, those before it are parked.
#
# Used by the worker's main thread.


class RunStack:
    """A parked run stays at its layer boundary; when it resumes, nothing is computed again.

    ``runs`` is not to be changed from outside.
    """

    def __init__(self, controller: PreemptionController) -> None:
        self.runs: list[Run] = []
        self._controller = controller

    @property
    def top(self) -> Run | None:
        """The one that computes."""
        return self.runs[-1] if self.runs else None

    def begin(self, run: Run) -> None:
        """Compute ``run`` now."""
        if self.runs:
            self.runs[-1].park()
            run.count_preemption()
        self.runs.append(run)
        self._controller.begins(run, time.monotonic_ns())

    def end(self) -> None:
        """The top one is over: go on with the one before it."""
        self.runs.pop()
        self._controller.pauses()
        if self.runs:
            self.runs[-1].resume()
            self._controller.begins(self.runs[-1], time.monotonic_ns())
