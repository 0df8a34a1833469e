"""Loads that fail as they are asked for, and traces that are too long: all of it is told."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from brisk.protocol.records import LoadFailed, LoadModel, ModelLoaded, TraceTold
from brisk.protocol.runtime_paths import Role
from brisk.runtime.models.entry import Binding
from brisk.runtime.peers.connections import Arrival, Peer
from brisk.runtime.worker.dispatcher import Dispatcher
from brisk.runtime.worker.introspection import Observation
from brisk.telemetry.events import MAX_SPANS, SPANS
from support.runtime.requests import ASession, a_model, a_peer


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (
            PermissionError(13, "Permission denied", "/models/hidden"),
            "internal",
            "loading net/1/model.onnx failed: PermissionError: .*denied: '/models/hidden'",
        ),
        (MemoryError(), "unavailable", "not enough memory for loading model '1'"),
    ],
)
def test_a_load_that_cannot_be_bound_is_answered_and_the_next_one_is_taken(
    error: Exception, code: str, said: str
) -> None:
    answers: list[Any] = []
    failures = [error]

    def bind(peer: Peer, model: LoadModel) -> Binding:
        if failures:
            raise failures.pop()
        return Binding(peer, model, "key", ASession())

    none: Any = None
    transport: Any = SimpleNamespace(send=lambda peer, record: answers.append(record))
    sessions: Any = SimpleNamespace(bind=bind)
    dispatcher = Dispatcher(transport, sessions, none, none, none, none)
    peer = a_peer()
    peer.is_welcome = True
    for number in range(2):
        model = a_model(Path("net/1/model.onnx"))._replace(model=number)
        dispatcher.take(Arrival(peer, model, None))
    failed, loaded = answers
    assert isinstance(failed, LoadFailed)
    assert (failed.model, failed.code) == (0, code)
    assert re.search(said, failed.message)
    assert isinstance(loaded, ModelLoaded)
    assert loaded.model == 1


def test_a_trace_that_has_no_room_for_all_spans_says_so(caplog: pytest.LogCaptureFixture) -> None:
    sent: list[TraceTold] = []
    none: Any = None
    transport: Any = SimpleNamespace(send=lambda peer, record: sent.append(record))
    observation = Observation(Role.FOREGROUND, "cpu", 1, transport, none, none, none, ())
    observation.begin_trace(none)
    for number in range(MAX_SPANS + 3):
        SPANS.add("layers", str(number), 0, 1)
    observation.tell_trace(none)
    assert sum(len(told.spans) for told in sent) == MAX_SPANS
    assert "3 later ones are left out" in caplog.text
