"""Requests that wait for their model's load, and are refused before it ends."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from brisk.protocol.records import Failure, Infer, InferForm, Region, TensorForm
from brisk.runtime.models.entry import Binding
from brisk.runtime.peers.connections import Arrival
from brisk.runtime.requests.table import RequestTable
from brisk.runtime.worker.dispatcher import Dispatcher
from support.runtime.requests import NOWHERE as REGION
from support.runtime.requests import a_model, a_peer

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


@pytest.mark.parametrize("shape", [(-1, 3), (2**62, 2**62)], ids=["negative", "too large"])
def test_one_that_cannot_be_read_is_let_in_for_its_run_to_say_so(shape: tuple[int, ...]) -> None:
    admitted: list[Infer] = []
    arrival = SimpleNamespace(
        holds_requests=True, is_ripe=True, may_begin=lambda inputs: False, problem=None
    )
    session: Any = SimpleNamespace(arrival=arrival, awaits_bytes=True)
    peer = a_peer()
    binding = Binding(peer, a_model(), "model", session)
    sessions: Any = SimpleNamespace(bindings={(peer.number, 0): binding})
    requests: Any = SimpleNamespace(admit=lambda binding, record: admitted.append(record))
    dispatcher = Dispatcher(NOWHERE, sessions, requests, NOWHERE, NOWHERE, NOWHERE)
    peer.is_welcome = True
    form = InferForm(0, (TensorForm("x", "BYTES", shape),), ("y",), "normal")
    record = Infer(1, form, (REGION,), REGION)
    dispatcher.take(Arrival(peer, record, None))
    assert admitted == [record]
