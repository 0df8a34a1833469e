"""What becomes of runs: answers, of which some are sampled, or errors.

Used by the worker's main thread.
"""

from __future__ import annotations

import time

from brisk.errors import BriskError, InternalError, ProtocolError
from brisk.runtime.early_exit.audits import Audits
from brisk.runtime.early_exit.sampling import Sampler
from brisk.runtime.preemption.controller import PreemptionController
from brisk.runtime.preemption.memory_limit import shortage
from brisk.runtime.requests.connections import Connections
from brisk.runtime.requests.table import RequestTable
from brisk.runtime.worker.batch import Batcher, RequestJob, Run, split_results
from brisk.scheduling.job import JobState


class Completion:
    """Every job of a run is answered once, through here."""

    def __init__(
        self,
        transport: Connections,
        requests: RequestTable,
        batcher: Batcher,
        controller: PreemptionController,
        audits: Audits,
        sampler: Sampler,
    ) -> None:
        self._transport = transport
        self._requests = requests
        self._batcher = batcher
        self._controller = controller
        self._audits = audits
        self._sampler = sampler

    def fail_late(self, run: Run, now_ns: int) -> None:
        """Answer those of its jobs whose deadline has passed."""
        for job in run.jobs:
            if job.state is JobState.RUNNING and job.is_late(now_ns):
                self._requests.fail_late(job, now_ns)

    def answer_leaving(self, run: Run) -> None:
        """Answer the jobs of a batch whose rows have all left it; the others go on."""
        for job, values, answerers in run.answered_jobs():
            self._requests.succeed(job, values, run.started_ns, time.monotonic_ns(), answerers)

    def answer(self, run: Run) -> None:
        """The run is finished. Raises what writing an answer does."""
        finished_ns = time.monotonic_ns()
        self._controller.finished(run, finished_ns)
        shares = split_results(run, run.frame.results())
        kept = self._audits.keep(run.cached)
        self._sampler.sample(run.cached)
        for job, share, answerers in zip(run.jobs, shares, run.answerers(), strict=True):
            if job.state is JobState.RUNNING:
                # The state is copied before the answer goes, and counts after it: whatever fails,
                # a request with an error has not changed it. The next one begins after this.
                asked, state = job.payload.divide(share)
                self._requests.succeed(job, asked, run.started_ns, finished_ns, answerers)
                if state is not None and job.payload.sequence is not None:
                    job.payload.sequence.state = state
        self._audits.note(run.cached, kept)

    def fail(self, jobs: list[RequestJob], error: Exception) -> None:
        """Answer a job alone; jobs that were joined are tried again, each on its own.

        A peer that named memory it has not is dropped.
        """
        if len(jobs) > 1:
            self._batcher.retry(job for job in jobs if job.state is JobState.RUNNING)
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
