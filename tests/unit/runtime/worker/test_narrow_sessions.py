"""Narrow sessions are removed once requests no longer crowd."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from brisk.protocol.records import TensorForm
from brisk.runtime.requests.batch import RunsInProgress
from brisk.runtime.requests.table import Request
from brisk.runtime.worker.side_by_side import CROWDS, IDLE_NS, LEAST_NS, SideBySide
from brisk.scheduling.queue import ReadyQueue
from brisk.scheduling.times import ProfileTable
from support.runtime.requests import ASession, a_model, a_request


@dataclass(eq=False)
class ACrowdedSession(ASession):
    narrow: object | None = None
    crowds: int = 0
    __hash__ = object.__hash__  # as a session has


def test_sessions_that_come_too_late_for_their_crowd_are_removed_when_none_follows() -> None:
    queue: ReadyQueue[Request] = ReadyQueue()
    profiles, asked = ProfileTable(), []
    session: Any = ACrowdedSession()
    for number in range(4):
        request = a_request(number, a_model(), session, (TensorForm("x", "FP32", (1, 3)),))
        queue.add(request, None, "m")
        profiles.find(request.profile_key).learn(int(2 * LEAST_NS))
    parts: Any = SimpleNamespace(
        queue=queue, serves_realtime=False, ask_for_narrow=lambda each: asked.append(each) or True
    )
    side = SideBySide(
        processors=2,
        relay=parts,
        requests=parts,
        profiles=profiles,
        sessions=parts,
        is_held=lambda: False,
        runs=RunsInProgress(),
        begin=lambda job_class: None,
        conclude=lambda step: None,
        wake=lambda: None,
    )
    now_ns = 10**12
    for _ in range(CROWDS):
        side.share_out(now_ns)
    assert len(asked) == 1
    while queue.pop() is not None:
        pass
    session.narrow = object()  # the sessions that were asked for
    side.look(now_ns + IDLE_NS)
    assert session.narrow is not None
    side.look(now_ns + IDLE_NS + 1)
    assert session.narrow is None
