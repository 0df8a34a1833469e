"""The worker: one thread that reads, decides and computes, and a loader thread next to it.

A request crosses no thread: records from the socket are read between two segments, at most a
quantum apart. Time-outs, cancellations and refusals therefore take effect at the next boundary.
While a segment takes long, another thread reads records and leads (``Relay``).
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from brisk.os_priority import Precedence
from brisk.protocol.runtime_paths import Role
from brisk.runtime.early_exit.audits import Auditor, Audits
from brisk.runtime.early_exit.cache_watch import cache_watch
from brisk.runtime.early_exit.sampling import Sampler
from brisk.runtime.heartbeat import Heartbeat
from brisk.runtime.log import LOGGER
from brisk.runtime.models.loader import Loader
from brisk.runtime.models.table import SessionTable
from brisk.runtime.peers.connections import Connections, retire_orphans
from brisk.runtime.pipelines.loading import PipelineLoads
from brisk.runtime.preemption.controllers import PreemptionController
from brisk.runtime.preemption.gate import RECHECK_S
from brisk.runtime.requests.batch import Run, RunsInProgress, begin_run, take_batch
from brisk.runtime.requests.offering import Offering
from brisk.runtime.requests.table import Request, RequestTable
from brisk.runtime.sessions.device import LaunchQueue, has_lost_device
from brisk.runtime.settings import Settings
from brisk.runtime.worker.dispatcher import Dispatcher
from brisk.runtime.worker.introspection import Observation
from brisk.runtime.worker.long_runs import LongRuns
from brisk.runtime.worker.relay import Relay, Step
from brisk.runtime.worker.side_by_side import SideBySide
from brisk.scheduling.job import JobState
from brisk.scheduling.job_class import JobClass
from brisk.scheduling.times import ProfileTable

LOOK_INTERVAL_NS = 1_000_000_000
LONGEST_UNCHECKED_NS = 10_000_000_000  # used if there is no moment without a run

ASIDE_PATIENCE_S = 0.01
"""Time between two looks at concurrent steps while there is nothing else to do."""


class Worker:
    """Serves every peer of ``connections`` until none has been connected for the idle time."""

    def __init__(
        self,
        connections: Connections,
        heartbeat: Heartbeat,
        device: str,
        queues: Mapping[JobClass, LaunchQueue],
        controller: PreemptionController,
        profiles: ProfileTable,
        settings: Settings,
        role: Role,
    ) -> None:
        if controller.alarm is not None:
            connections.watch(controller.alarm)
        self._connections = connections
        self._heartbeat = heartbeat
        self._queues = queues
        self._controller = controller
        self._profiles = profiles
        is_foreground = role is Role.FOREGROUND
        goes_first = is_foreground and controller.policy.lowers_best_effort
        is_first = goes_first and device == "cpu"
        self._progress = RunsInProgress()
        self._runs, self._companions = self._progress.leading, self._progress.companions
        self._is_held = False
        """Whether the run on top waits for the gate."""
        self._loader = Loader(
            device=device,
            threads=settings.threads,
            wake=connections.wake,
            artefacts=settings.artefacts,
            caches=cache_watch(settings, is_foreground=is_foreground),
            longest_s=settings.max_load_s,
            activity=self._progress,
        )
        requests = RequestTable(connections, settings.max_waiting, controller, profiles)
        self._audits = Audits(Auditor())
        self._sampler = Sampler(settings.sampled_share, settings.sample_bytes)
        # on a GPU a step only issues work, and only the thread that has the device may issue it
        self._relay = Relay(self._take_turn, self._attend, may_hand_over=device == "cpu")
        niceness = settings.realtime_niceness if goes_first else 0
        precedence = Precedence(niceness, LOGGER.warning, lambda: self._relay.threads)
        self._pipelines = PipelineLoads(
            self._loader.tell, self._loader.watch, precedence if device == "cpu" else None
        )
        sessions = SessionTable(self._loader, self._pipelines, precedence)
        self._long_runs = LongRuns(requests, sessions, self._progress, controller, precedence)
        self._side = SideBySide(
            processors=settings.threads if is_first and settings.runs_side_by_side else 1,
            relay=self._relay,
            requests=requests,
            profiles=profiles,
            sessions=sessions,
            is_held=self._is_held_by_load,
            runs=self._progress,
            begin=lambda job_class: self._begin(job_class, is_narrow=True),
            conclude=self._conclude,
            wake=connections.wake,
        )
        gate = controller.gate.descriptor if is_first and settings.computes_in_stubs else None
        offering = Offering(connections, sessions, gate, settings.threads, role)
        observation = Observation(
            role=role,
            device=device,
            threads=settings.threads,
            transport=connections,
            sessions=sessions,
            requests=requests,
            runs=self._progress,
            aside=self._long_runs.aside,
        )
        self._dispatcher = Dispatcher(
            connections, sessions, requests, observation, offering, heartbeat
        )
        self._requests, self._offering = requests, offering
        self._idle_exit_ns = int(settings.idle_exit_s * 1e9)
        self._last_peer_ns = self._looked_around_ns = self._beaten_ns = time.monotonic_ns()
        self._beaten_peers = 0

    @property
    def is_idle(self) -> bool:
        now_ns = time.monotonic_ns()
        if self._connections.peers:
            self._last_peer_ns = now_ns
        return now_ns - self._last_peer_ns >= self._idle_exit_ns

    def serve(self) -> None:
        """Serve until no peer has been connected for the idle time."""
        self._relay.lead()

    def _take_turn(self) -> bool:
        if self.is_idle:
            return False
        self.step()
        return True

    def step(self) -> None:
        """Read what has come, choose what runs, compute a quantum of it, answer what is done."""
        self._hear()
        if self._long_runs.aside or self._companions or len(self._runs) > 1:
            self._attend_aside()
        self._try_pipelines()
        self._requests.expire()
        is_begun = self._choose()
        if self._runs:
            self._run_top()
        elif not is_begun and (self._long_runs.aside or self._companions):  # these need the baton
            self._relay.rest(lambda: self._connections.wait(ASIDE_PATIENCE_S))
        self._look_around()

    def _hear(self) -> None:
        """Handle what peers, audits and the loader thread have sent."""
        self._listen(self._patience_s())
        self._is_held = False
        if self._audits.verdicts:
            self._audits.settle()

    def _listen(self, patience_s: float) -> None:
        for event in self._connections.poll(patience_s):
            self._dispatcher.take(event)
        while self._loader.outcomes:
            self._dispatcher.settle(self._loader.outcomes.popleft())

    def _patience_s(self) -> float:
        if self._is_held:
            return RECHECK_S
        if self._long_runs.aside or self._companions:
            return 0.0
        if self._is_held_by_load():
            return 0.0 if self._runs else RECHECK_S
        if self._runs or len(self._requests.queue):
            return 0.0
        if self._pipelines.tried:
            return ASIDE_PATIENCE_S if self._pipelines.is_under_way else 0.0
        return (LOOK_INTERVAL_NS if self._connections.peers else self._idle_exit_ns) / 1e9

    def _is_held_by_load(self) -> bool:
        """Return whether no run may begin, as a load is done alone; a step asks nothing else."""
        lone = self._loader.lone
        return lone.is_used and lone.holds_runs()

    def _try_pipelines(self) -> None:
        """Compute a quantum of a loading pipeline's trial, unless a real-time job is there."""
        if not (self._pipelines.tried and self._pipelines.collect()) or self._is_held_by_load():
            return
        if self._requests.queue.peek(JobClass.REALTIME) or self._long_runs.has_realtime:
            return
        with self._progress.parked(), self._queues[JobClass.NORMAL].issuing():
            self._pipelines.advance()

    def _choose(self) -> bool:
        """Begin the next job, and what may be joined to it, if nothing runs or the policy says so.
        Return False if no job was to begin."""
        if self._is_held_by_load():
            return False
        queue, side = self._requests.queue, self._side
        is_owed = self._controller.owes_normal(time.monotonic_ns())
        only = JobClass.NORMAL if is_owed and queue.peek(JobClass.NORMAL) else None
        if len(queue) > 1 and not self._runs and only is None:
            side.share_out(time.monotonic_ns())
        following = queue.peek(only)
        if following is None:
            return False
        if self._runs:
            top = self._runs[-1].jobs[0]
            if not self._controller.policy.takes_place(following, top, normal_is_owed=is_owed):
                return False
        elif self._companions and side.holds(following):
            return False
        if following.job_class is JobClass.REALTIME:
            side.note_urgent(time.monotonic_ns())
        run = self._begin(only, is_narrow=bool(self._companions) and side.takes(following))
        if run is None:
            return True
        if self._runs:
            self._runs[-1].park()
            run.count_preemption()
        self._runs.append(run)
        self._controller.begins(run, time.monotonic_ns())
        return True

    def _begin(self, only: JobClass | None, *, is_narrow: bool) -> Run | None:
        """Begin the next job, of a class or of all; return None if it has failed at once."""
        jobs = take_batch(self._requests.queue, self._profiles, only)
        now_ns = time.monotonic_ns()
        try:
            with self._queues[jobs[0].job_class].issuing():
                return begin_run(jobs, self._profiles, now_ns, is_narrow=is_narrow)
        except Exception as error:  # noqa: BLE001  # the worker must outlive any request
            self._fail(jobs, error)
        return None

    def _run_top(self) -> None:
        """Compute a quantum of the run on top; when it is over, the run below it goes on."""
        run, began_ns = self._runs[-1], time.monotonic_ns()
        is_over = self._advance(run)
        self._progress.ended_ns = ended_ns = time.monotonic_ns()
        taken_ns = run.share_of(ended_ns - began_ns)
        self._requests.queue.charge(run.job_class, run.jobs[0].model, taken_ns)
        if not is_over:
            return
        self._runs.pop()
        if not self._companions:
            self._controller.pauses()
        if self._runs:
            self._long_runs.resume_top()

    def _advance(self, run: Run) -> bool:
        """Run segments for a quantum; return True if the run is over, answered or not."""
        now_ns = time.monotonic_ns()
        self._requests.fail_all_late(run.live, run.started_ns, now_ns)
        if not run.live:
            return True
        queue = self._queues[run.job_class]
        try:
            with queue.issuing():
                if not run.frame.is_finished and not self._compute(run, queue, now_ns):
                    for job, values, answerers in run.take_leaving():
                        ended_ns = time.monotonic_ns()
                        self._requests.succeed(job, values, run.started_ns, ended_ns, answerers)
                    return False
                if not queue.is_done():
                    return False
                if run.live:  # else its clients may have taken its memory back meanwhile
                    self._answer(run)
        except Exception as error:  # noqa: BLE001  # the worker must outlive any request
            self._fail(run.jobs, error)
        return True

    def _compute(self, run: Run, queue: LaunchQueue, now_ns: int) -> bool:
        """Issue segments for a quantum, or until the queue is full or the next segment is held.

        Return True after the last segment.
        """
        controller = self._controller
        until_ns = now_ns + controller.quanta_ns[run.job_class]
        while now_ns < until_ns and queue.has_room():
            if controller.holds(run, now_ns):
                self._is_held = True
                return False
            is_last = self._issue(run, queue, now_ns)
            done_ns = time.monotonic_ns()
            run.computed_ns += done_ns - now_ns
            if is_last:
                return True
            now_ns = done_ns
        return False

    def _issue(self, run: Run, queue: LaunchQueue, now_ns: int) -> bool:
        """Compute a segment without the baton; return True if it was the last one.

        Raises what the frame does, and Superseded if another thread has taken the lead.
        """
        step = Step(run, now_ns)
        self._relay.begin(step)
        try:
            step.is_last = queue.issue(run.frame)
        except Exception as error:  # noqa: BLE001  # it is raised again, if here
            step.error = error
        self._relay.finish(step)
        if step.error is not None:
            raise step.error
        return step.is_last

    def _attend(self, step: Step) -> bool:
        """Handle what has come, and do what is due, while a step takes long and goes on.

        Return True if others go on concurrently with it.
        """
        self._look_around()
        self._listen(0.0)
        self._requests.expire()
        self._attend_aside()
        is_load_waiting = self._is_held_by_load() or bool(self._pipelines.tried)
        return self._long_runs.attend(step, is_load_waiting=is_load_waiting)

    def _attend_aside(self) -> None:
        """Watch runs that others do not wait for, or are parked; take back steps that are over."""
        while self._relay.returned:
            step = self._relay.returned.popleft()
            self._long_runs.take_back(step)
            self._conclude(step)
        self._long_runs.watch(self._side.steps)

    def _conclude(self, step: Step) -> None:
        """Handle a step that is over: its run is answered, or goes on behind all others."""
        run, ended_ns = step.run, time.monotonic_ns()
        self._progress.ended_ns = ended_ns
        run.computed_ns += ended_ns - step.began_ns
        taken_ns = run.share_of(ended_ns - step.began_ns)
        if not (self._runs or self._companions):
            self._controller.pauses()
        self._requests.queue.charge(run.job_class, run.jobs[0].model, taken_ns)
        if not run.live:
            return
        try:
            if step.error is not None:
                raise step.error
            if step.is_last:
                self._answer(run)
            else:
                self._long_runs.put_behind(run)
        except Exception as error:  # noqa: BLE001  # the worker must outlive any request
            self._fail(run.jobs, error)

    def _answer(self, run: Run) -> None:
        """Answer a run that is finished; sample and audit some of what caches answered.

        Raises what writing an answer does.
        """
        finished_ns = time.monotonic_ns()
        self._controller.finished(run, finished_ns)
        run.count()
        shares = run.split(run.frame.results())
        kept = []
        if run.cached:
            kept = self._audits.keep(run.cached)
            self._sampler.sample(run.cached)
        run.answer(self._requests, shares, finished_ns)
        if run.cached:
            self._audits.note(run.cached, kept)

    def _fail(self, jobs: list[Request], error: Exception) -> None:
        """Answer a job that ran alone; try joined jobs again, each on its own."""
        if len(jobs) > 1:
            for job in jobs:
                if job.state is JobState.RUNNING:
                    self._requests.retry(job)
            return
        if has_lost_device(error):  # the next worker, which replays the job, finds another device
            self._long_runs.lose_device(error)
        (job,) = jobs
        self._requests.fail_run(job, error)

    def _look_around(self) -> None:
        """Do what is due once a second, between two runs if possible."""
        now_ns = time.monotonic_ns()
        peers = len(self._connections.peers)
        if now_ns - self._beaten_ns >= LOOK_INTERVAL_NS or peers != self._beaten_peers:
            self._beaten_ns, self._beaten_peers = now_ns, peers
            self._heartbeat.beat(peers)
        passed_ns = now_ns - self._looked_around_ns
        if passed_ns < (LONGEST_UNCHECKED_NS if self._runs else LOOK_INTERVAL_NS):
            return
        self._looked_around_ns = now_ns
        if (endless := self._loader.watch.look()) is not None:
            self._long_runs.end_worker(endless.complaint, at_fault=endless.at_fault)
        retire_orphans(self._connections, now_ns)
        self._offering.look(now_ns)
        self._side.look(now_ns)
        self._dispatcher.look(now_ns)
