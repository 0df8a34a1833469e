"""Requests that wait for their model's load, and are refused before it ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from brisk.protocol.records import Failure, Infer, InferForm, Region
from brisk.runtime.requests.table import RequestTable
from brisk.runtime.worker.dispatcher import Dispatcher

NOWHERE: Any = None


def test_those_that_waited_too_long_count_as_failed_each() -> None:
    sent: list[Failure] = []
    transport: Any = SimpleNamespace(send=lambda peer, record: sent.append(record))
    binding: Any = SimpleNamespace(failed=0, peer=None)
    form = InferForm(1, (), ("y",), "normal", None)
    late = Infer(7, form, (), Region(0, 0, 8), requests=4)
    sessions: Any = SimpleNamespace(
        forget_idle_sequences=lambda now_ns: None, take_late=lambda now_ns: [(binding, late)]
    )
    requests = RequestTable(transport, 8, NOWHERE, NOWHERE)
    dispatcher = Dispatcher(transport, sessions, requests, NOWHERE, NOWHERE, NOWHERE)
    dispatcher.look(0)
    assert binding.failed == 4
    assert [each.request for each in sent] == [7]
