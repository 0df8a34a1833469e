"""Which runs are computed side by side: a second one of the same class, of another model.

Used by the worker's main thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from brisk.runtime.batch import RequestJob, Run, Shapes, profile_key
from brisk.runtime.companion import Companion, Stopped
from brisk.runtime.pipeline_session import PipelineSession
from brisk.runtime.session import Session
from brisk.scheduling.policy import more_urgent
from brisk.scheduling.profile import ProfileTable

LEAST_NS = 1_000_000
"""What a run must take, as predicted, to be worth handing over: that takes some 0.1 ms."""

MOST_STRETCHED = 2.0
"""How many times as long as alone a run takes at most beside another one, for deadlines."""


class Beside:
    """``runs``: what the companion computes, one at most."""

    def __init__(
        self,
        companion: Companion,
        threads: int,
        profiles: ProfileTable,
        clock_ns: Callable[[], int],
        *,
        is_wanted: bool,
    ) -> None:
        """``threads``: of the worker, the companion's included. ``is_wanted`` False: one run at a
        time.
        """
        self.runs: Sequence[Run] = companion.runs
        self._companion = companion
        self._threads = threads
        self._profiles = profiles
        self._clock_ns = clock_ns
        self._is_wanted = is_wanted and threads > companion.threads

    def threads(self, run: Run) -> int:
        """With how many the worker's own ``run`` computes now."""
        if not self.runs:
            return run.threads
        return min(run.threads, self._threads - self._companion.threads)

    def admits(self, job: RequestJob) -> bool:
        """Whether the worker itself may begin ``job`` now; else it may when ``look`` gives back
        what the companion computes.
        """
        if not self.runs:
            return True
        (run,) = self.runs
        session = job.payload.binding.session
        is_urgent = job.job_class is run.job_class or more_urgent(job, run.jobs[0])
        return is_urgent and session is not run.session and _is_plain(session)

    def takes(self, following: RequestJob | None, present: Sequence[Run]) -> bool:
        """Whether the companion should begin ``following``: the worker computes the last one of
        ``present``, and the others are parked.
        """
        if not self._is_wanted or self.runs or not present or following is None:
            return False
        top, request = present[-1], following.payload
        session = request.binding.session
        key = profile_key(request)
        return (
            following.job_class is top.job_class
            and _is_plain(session)
            and all(_is_plain(run.session) and run.session is not session for run in present)
            and (self._profiles.run_ns(key) or 0) >= LEAST_NS
            and _pays(_stretch(top.session, top.shapes), _stretch(session, key[1]))
            and self._in_time([following, *top.jobs])
        )

    def begin(self, run: Run, beside: Run) -> None:
        """Compute ``run`` beside the worker's own: neither tells what a run takes alone."""
        run.is_disturbed = beside.is_disturbed = True
        self._companion.begin(run)

    def look(self, top: Run | None, following: RequestJob | None) -> Stopped | None:
        """What the companion has stopped computing, if anything.

        It is told to stop where something more urgent is there, where nobody waits for the answer
        any more, and where the worker has nothing else to do and computes it on all processors.
        """
        if not self.runs:
            return None
        (run,) = self.runs
        stopped = self._companion.take()
        if stopped is None:
            if self._is_wanted_back(run, top, following):
                self._companion.recall()
            self._companion.keep_off()
        return stopped

    def _is_wanted_back(self, run: Run, top: Run | None, following: RequestJob | None) -> bool:
        if not run.is_wanted:
            return True
        if top is None:
            return following is None or not self.admits(following)
        if following is not None and more_urgent(following, run.jobs[0]):
            return True
        return top.job_class is not run.job_class

    def _in_time(self, jobs: Iterable[RequestJob]) -> bool:
        """Whether the runs of all keep their deadlines even if each takes as long as both."""
        now_ns = self._clock_ns()
        for job in jobs:
            if job.deadline_ns is not None:
                run_ns = self._profiles.run_ns(profile_key(job.payload))
                if run_ns is None or now_ns + MOST_STRETCHED * run_ns > job.deadline_ns:
                    return False
        return True


def _stretch(session: Session | PipelineSession | None, shapes: Shapes) -> float:
    """How many times as long a run takes on half of the processors."""
    return 2.0 if session is None else session.threads.stretch(shapes)


def _pays(stretch: float, other: float) -> bool:
    """Whether two runs end sooner on average side by side than one after the other.

    ``stretch`` is that of the run that computes, ``other`` that of the one that waits: how many
    times as long each takes on its part of the processors. One after the other, the first takes
    its remainder R and the second R + T. Side by side they take ``stretch`` R, and, since the
    second has all processors from then on, T + ``stretch`` R (1 - 1 / ``other``).
    """
    return stretch * (2.0 - 1.0 / other) < 2.0


def _is_plain(session: object) -> bool:
    """Whether its runs compute nothing but its own layers, which nobody exchanges meanwhile."""
    return (
        isinstance(session, Session)
        and session.is_settled
        and session.caches.served is None
        and session.caches.candidate is None
    )
