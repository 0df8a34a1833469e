"""The worker: one thread that reads, decides and computes, and a load lane beside it.

No lock is needed, and a request crosses no thread: what the socket brings is seen between two
layers, at most a quantum apart. Time-outs, cancellations and refusals therefore take
effect at the next layer boundary.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from brisk.errors import BriskError, InternalError, ProtocolError
from brisk.execution.device import Device, StreamPriority
from brisk.execution.host_queue import HostQueue
from brisk.runtime.adaptation import Adaptation
from brisk.runtime.auditor import Auditor
from brisk.runtime.audits import Audits
from brisk.runtime.batch import RequestJob, Run, begin_run, split_results
from brisk.runtime.cache_watch import CacheWatch
from brisk.runtime.gate import RECHECK_S
from brisk.runtime.lending import Lending
from brisk.runtime.loader import Loader
from brisk.runtime.memory import shortage
from brisk.runtime.observation import Observation
from brisk.runtime.orphans import Orphans
from brisk.runtime.pacing import Pacing
from brisk.runtime.pipeline_trial import Trials
from brisk.runtime.precedence import Precedence
from brisk.runtime.reception import Reception
from brisk.runtime.requests import RequestTable
from brisk.runtime.sampling import Sampler
from brisk.runtime.sessions import SessionTable
from brisk.runtime.settings import Settings
from brisk.runtime.transport import Transport
from brisk.runtime.turns import Turns
from brisk.scheduling.job import JobClass, JobState
from brisk.scheduling.policy import OrderingKey
from brisk.scheduling.profile import ProfileTable
from brisk.wire.role import Role

LOOK_INTERVAL_NS = 1_000_000_000
LONGEST_UNCHECKED_NS = 10_000_000_000  # where there is no moment without a run


class Worker:
    """Serves every peer of ``transport`` until none has been there for the idle time."""

    def __init__(
        self,
        transport: Transport,
        device: Device,
        ordering: OrderingKey,
        pacing: Pacing,
        profiles: ProfileTable,
        settings: Settings,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        role: Role = Role.FOREGROUND,
    ) -> None:
        if pacing.alarm is not None:
            transport.watch(pacing.alarm)
        self._transport = transport
        self._clock_ns = clock_ns
        urgent = HostQueue(device.new_stream(StreamPriority.HIGH), None)
        other = HostQueue(
            device.new_stream(StreamPriority.LOW),
            settings.outstanding_layers if device.is_asynchronous else None,
        )
        self._queues = {
            job_class: urgent if job_class is JobClass.REALTIME else other
            for job_class in JobClass
        }
        adapts = role is Role.FOREGROUND
        caches = CacheWatch(Adaptation(settings.adaptation_s) if adapts else None)
        self._loader = Loader(device.torch_device, transport.wake, settings.artefacts, caches)
        self._trials = Trials(self._loader.tell, clock_ns)
        self._pacing = pacing
        self._profiles = profiles
        self._requests = RequestTable(
            transport, ordering, settings.max_waiting, pacing, profiles, clock_ns
        )
        self._turns = Turns(self._requests.queue, ordering, profiles, clock_ns)
        self._audits = Audits(Auditor())
        self._sampler = Sampler(settings.sampled_share, settings.sample_bytes)
        self._runs: list[Run] = []
        """The last one runs; those before it are parked, each for a more urgent one."""
        self._is_held = False
        """The run on top waits for the gate."""
        goes_first = role is Role.FOREGROUND and pacing.policy.stands_back
        precedence = Precedence(settings.realtime_niceness if goes_first else 0)
        sessions = SessionTable(self._loader, self._trials, precedence)
        observation = Observation(
            role,
            str(device.torch_device),
            torch.get_num_threads(),
            transport,
            sessions,
            self._requests,
            self._runs,
        )
        lent_ns = settings.lent_ns if role is Role.FOREGROUND else 0
        self._lending = Lending(transport, sessions, lent_ns)
        self._reception = Reception(
            transport, sessions, self._requests, observation, self._lending
        )
        self._orphans = Orphans(transport)
        self._idle_exit_ns = int(settings.idle_exit_s * 1e9)
        self._last_peer_ns = clock_ns()
        self._looked_around_ns = clock_ns()

    @property
    def is_idle(self) -> bool:
        """True when nobody has been connected for the idle time."""
        if self._transport.peer_count:
            self._last_peer_ns = self._clock_ns()
            return False
        return self._clock_ns() - self._last_peer_ns >= self._idle_exit_ns

    def step(self) -> None:
        """Take in what has come, drop what is late, run a quantum of the next job."""
        for event in self._transport.poll(self._patience_s()):
            self._reception.take(event)
        self._reception.take_arrived(may_wait=not self._runs and not len(self._turns))
        self._is_held = False
        self._audits.settle()
        while (outcome := self._loader.take()) is not None:
            self._reception.settle(outcome)
        self._try_pipelines()
        self._requests.expire()
        self._take_turn()
        self._loader.attend(self._runs)
        if self._runs and self._advance(self._runs[-1]):
            self._runs.pop()
            self._pacing.pauses()
            if self._runs:
                self._resume(self._runs[-1])
        self._loader.attend(self._runs)
        self._look_around()

    def _resume(self, run: Run) -> None:
        run.resume()
        self._pacing.begins(run, self._clock_ns())

    def _try_pipelines(self) -> None:
        """A quantum of a loading pipeline's trial, unless a real-time job is there."""
        if not self._trials.is_busy:
            return
        present = [run.jobs[0] for run in self._runs[-1:]]
        if (following := self._turns.following()) is not None:
            present.append(following)
        if all(job.job_class is not JobClass.REALTIME for job in present):
            with self._queues[JobClass.NORMAL].issuing():
                self._trials.advance()

    def _patience_s(self) -> float:
        """How long ``poll`` may wait."""
        if self._is_held:
            return RECHECK_S
        if self._runs or self._trials.is_busy or len(self._turns):
            return 0.0
        if self._reception.arriving:
            return self._reception.arriving.patience_s
        if self._transport.peer_count:
            return LOOK_INTERVAL_NS / 1e9
        return self._idle_exit_ns / 1e9

    def _take_turn(self) -> None:
        """Begin the next job if nothing runs, or park what runs if the policy says so.

        A parked run stays at its layer boundary; when it resumes, nothing is computed again.
        """
        following = self._turns.following()
        if following is None:
            return
        if self._runs and not self._pacing.policy.interrupts(following, self._runs[-1].jobs[0]):
            return
        run = self._begin_next()
        if run is not None:
            if self._runs:
                self._runs[-1].park()
                run.count_preemption()
            self._runs.append(run)

    def _begin_next(self) -> Run | None:
        """Begin the next job with those that may be joined to it; None where none can begin."""
        jobs = self._turns.take()
        now_ns = self._clock_ns()
        try:
            with self._queues[jobs[0].job_class].issuing():
                run = begin_run(jobs, self._profiles, now_ns)
        except Exception as error:  # noqa: BLE001  # the worker must outlive any request
            self._fail(jobs, error)
            return None
        self._pacing.begins(run, now_ns)
        return run

    def _advance(self, run: Run) -> bool:
        """Run layers for a quantum; True where the run is over, answered or not."""
        now_ns = self._clock_ns()
        for job in run.jobs:
            if job.state is JobState.RUNNING and job.is_late(now_ns):
                self._requests.fail_late(job, now_ns)
        if all(job.state is JobState.ENDED for job in run.jobs):
            return True
        if run.threads != torch.get_num_threads():
            torch.set_num_threads(run.threads)
        queue = self._queues[run.job_class]
        try:
            with queue.issuing():
                if not run.frame.is_finished and not self._compute(run, queue, now_ns):
                    self._answer_leaving(run)
                    return False
                if not queue.is_done():
                    return False
                self._answer(run)
        except Exception as error:  # noqa: BLE001  # the worker must outlive any request
            self._fail(run.jobs, error)
        return True

    def _compute(self, run: Run, queue: HostQueue, now_ns: int) -> bool:
        """Issue layers until a quantum is over, the queue is full, or the pacing holds the next.

        True after the last one.
        """
        frame, pacing = run.frame, self._pacing
        until_ns = now_ns + pacing.quanta_ns[run.job_class]
        while now_ns < until_ns and queue.has_room():
            if pacing.holds(run, now_ns):
                self._is_held = True
                return False
            is_last = queue.issue(frame)
            done_ns = self._clock_ns()
            pacing.layer_done(run, done_ns - now_ns)
            if is_last:
                return True
            now_ns = done_ns
        return False

    def _answer_leaving(self, run: Run) -> None:
        """Answer the jobs of a batch whose rows have all left it; the others go on."""
        for job, values, answerers in run.answered_jobs():
            self._requests.succeed(job, values, run.started_ns, self._clock_ns(), answerers)

    def _answer(self, run: Run) -> None:
        finished_ns = self._clock_ns()
        self._pacing.finished(run, finished_ns)
        shares = split_results(run, run.frame.results())
        kept = self._audits.keep(run.cached)
        self._sampler.sample(run.cached)
        for job, share, answerers in zip(run.jobs, shares, run.answerers(), strict=True):
            if job.state is JobState.RUNNING:
                self._requests.succeed(job, share, run.started_ns, finished_ns, answerers)
        run.learn(finished_ns)
        self._audits.note(run.cached, kept)

    def _fail(self, jobs: list[RequestJob], error: Exception) -> None:
        """Answer a job alone; jobs that were joined are tried again, each on its own.

        A peer that named memory it has not is dropped.
        """
        if len(jobs) > 1:
            self._turns.retry(job for job in jobs if job.state is JobState.RUNNING)
            return
        (job,) = jobs
        model = job.payload.binding.model
        short = shortage(error, f"a request of model '{model.name}'")
        if short is not None:
            error = short
        elif not isinstance(error, BriskError):
            error = InternalError(f"{type(error).__name__}: {error}")
        if job.state is JobState.RUNNING:
            self._requests.fail(job, error)
        if isinstance(error, ProtocolError):
            self._transport.drop(job.payload.peer, str(error))

    def _look_around(self) -> None:
        """What is looked after once a second, between runs where there is such a moment."""
        now_ns = self._clock_ns()
        passed_ns = now_ns - self._looked_around_ns
        if passed_ns < (LONGEST_UNCHECKED_NS if self._runs else LOOK_INTERVAL_NS):
            return
        self._looked_around_ns = now_ns
        self._lending.look()
        self._orphans.retire(now_ns)
