"""Narrow sessions are removed once requests no longer crowd."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from brisk.protocol.records import TensorForm
from brisk.runtime.requests.batch import RunsInProgress
from brisk.runtime.requests.table import Request
from brisk.runtime.worker.side_by_side import CROWDS, IDLE_NS, LEAST_NS, SideBySide
from brisk.scheduling.job_class import JobClass
from brisk.scheduling.queue import ReadyQueue
from brisk.scheduling.times import ProfileTable
from support.open_files import no_thread_left
from support.runtime.gates import run_of
from support.runtime.requests import ASession, a_model, a_request


@dataclass(eq=False)
class ACrowdedSession(ASession):
    narrow: object | None = None
    crowds: int = 0
    __hash__ = object.__hash__  # as a session has


class Crowd:
    """Four normal requests that wait, each for a run that is worth a companion."""

    def __init__(self) -> None:
        self.queue: ReadyQueue[Request] = ReadyQueue()
        self.asked: list[Any] = []
        self.runs = RunsInProgress()
        self.begun: list[Request] = []
        self.session: Any = ACrowdedSession()
        profiles = ProfileTable()
        tensors = (TensorForm("x", "FP32", (1, 3)),)
        for number in range(4):
            request = a_request(number, a_model(), self.session, tensors)
            self.queue.add(request, None, "m")
            profiles.find(request.profile_key).learn(int(2 * LEAST_NS))
        parts: Any = SimpleNamespace(
            queue=self.queue,
            serves_realtime=False,
            ask_for_narrow=lambda each: self.asked.append(each) or True,
            threads=set(),
        )
        self.side = SideBySide(
            processors=2,
            relay=parts,
            requests=parts,
            profiles=profiles,
            sessions=parts,
            is_held=lambda: False,
            runs=self.runs,
            begin=self._begin,
            conclude=lambda step: None,
            wake=lambda: None,
        )

    def _begin(self, job_class: JobClass) -> None:
        """Begin a run that fails at once."""
        job = self.queue.pop(job_class)
        assert job is not None
        self.begun.append(job)


def test_sessions_that_come_too_late_for_their_crowd_are_removed_when_none_follows() -> None:
    crowd = Crowd()
    queue, session, side = crowd.queue, crowd.session, crowd.side
    now_ns = 10**12
    for _ in range(CROWDS):
        side.share_out(now_ns)
    assert len(crowd.asked) == 1
    while queue.pop() is not None:
        pass
    session.narrow = object()  # the sessions that were asked for
    side.look(now_ns + IDLE_NS)
    assert session.narrow is not None
    side.look(now_ns + IDLE_NS + 1)
    assert session.narrow is None


def test_no_run_begins_for_a_companion_that_the_system_has_no_thread_for() -> None:
    crowd = Crowd()
    crowd.session.narrow = object()
    with no_thread_left():
        crowd.side.share_out(10**12)
    assert not crowd.begun
    crowd.side.share_out(10**12)
    crowd.side.share_out(10**12)
    assert len(crowd.begun) == 2
    companions = [each for each in threading.enumerate() if each.name == "brisk-companion"]
    assert len(companions) == 1, "it waits for the next run"


def test_a_crowd_that_goes_on_ends_with_a_real_time_request() -> None:
    crowd = Crowd()
    crowd.session.narrow = object()
    leading = run_of(next(crowd.queue.jobs()))
    leading.is_narrow = True
    crowd.runs.leading.append(leading)
    crowd.side._following()
    assert len(crowd.begun) == 1
    crowd.side.note_urgent(time.monotonic_ns())
    crowd.side._following()
    assert len(crowd.begun) == 1
