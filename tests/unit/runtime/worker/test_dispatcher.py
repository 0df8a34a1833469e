"""Loads that fail as they are asked for, and answers that are too long for a record: all of it is
told."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from brisk.protocol.channel import decode_record, encode_record
from brisk.protocol.records import (
    AskStatistics,
    AskStatus,
    LoadFailed,
    LoadModel,
    ModelLoaded,
    StatisticsTold,
    TraceTold,
)
from brisk.protocol.runtime_paths import Role
from brisk.protocol.status import Status
from brisk.runtime.models.entry import Binding, SessionEntry
from brisk.runtime.peers.connections import Arrival, Peer
from brisk.runtime.requests.batch import RunsInProgress
from brisk.runtime.worker.dispatcher import Dispatcher
from brisk.runtime.worker.introspection import Observation
from brisk.telemetry import metrics
from brisk.telemetry.events import MAX_SPANS, SPANS
from brisk.telemetry.statistics import Statistics
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


# Texts that are not ASCII take six bytes a character.


def an_observation(sent: list[Any], sessions: Any = None) -> Observation:
    """Return an observation whose records are read anew after they were written."""
    transport: Any = SimpleNamespace(
        send=lambda peer, record: sent.append(decode_record(encode_record(record))), peers={}
    )
    requests: Any = SimpleNamespace(waiting=Counter)
    runs = RunsInProgress()
    return Observation(Role.FOREGROUND, "cpu", 1, transport, sessions, requests, runs, ())


class _Sessions(list[SessionEntry]):
    """What a report reads of a session table."""

    def entries(self) -> Iterator[SessionEntry]:
        return iter(self)


def test_a_trace_of_long_names_comes_in_as_many_records_as_it_needs() -> None:
    sent: list[TraceTold] = []
    none: Any = None
    observation = an_observation(sent)
    observation.begin_trace(none)
    for number in range(200):
        SPANS.add("layers", f"{number} {'ä' * 200}", 0, 1, "ö" * 200, "ü" * 200)
    observation.tell_trace(none)
    names = [span.name.partition(" ")[0] for told in sent for span in told.spans]
    assert names == list(map(str, range(200)))
    assert [told.is_last for told in sent] == [*[False] * (len(sent) - 1), True]


def test_counts_of_models_with_long_names_come_in_as_many_records_as_they_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[StatisticsTold] = []
    statistics = Statistics()
    monkeypatch.setattr("brisk.runtime.worker.introspection.STATISTICS", statistics)
    labels = [(f"{number}{'щ' * 160}", "1", "load", "loaded") for number in range(250)]
    for each in labels:
        statistics.count(metrics.LOADS, each)
    observation = an_observation(sent, _Sessions([]))
    observation.tell_statistics(a_peer(), AskStatistics(takes_news=False))
    told = {sample.labels for part in sent for sample in part.samples}
    assert told >= set(labels)
    assert [part.is_last for part in sent] == [*[False] * (len(sent) - 1), True]


def test_a_state_with_too_many_long_names_leaves_some_models_out_and_counts_them() -> None:
    sent: list[Status] = []
    entries, peer = [], a_peer()
    for number in range(200):
        path = Path(f"/models/{number}{'щ' * 100}/1/model.onnx")
        model = a_model(path)._replace(name=path.parent.parent.name)
        entry = SessionEntry(str(path), path, model)
        entry.bindings.append(Binding(peer, model, str(path)))
        entries.append(entry)
    an_observation(sent, _Sessions(entries)).tell_status(peer, AskStatus(1))
    (status,) = sent
    assert status.model_count == 200
    assert 50 < len(status.models) < 200
    assert status.models[0].name == entries[0].requester.name
