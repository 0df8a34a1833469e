"""Requests that wait for their model's load, and are refused before it ends."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from brisk.protocol.records import (
    Failure,
    Infer,
    InferForm,
    Region,
    SequenceStep,
    TensorForm,
)
from brisk.runtime.models.entry import Binding, LoadArrival, SessionEntry
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


@pytest.mark.parametrize("is_let_in", [False, True], ids=["comes", "is let in"])
def test_a_step_of_a_sequence_goes_behind_one_that_waited_if_the_bytes_come_before_it(
    is_let_in: bool,
) -> None:
    admitted: list[Infer] = []
    arrival = SimpleNamespace(holds_requests=True, is_ripe=True, problem=None)
    session: Any = SimpleNamespace(arrival=arrival, awaits_bytes=True)
    peer = a_peer()
    peer.is_welcome = True
    entry = SessionEntry("model", Path("model.onnx"), a_model())
    binding = Binding(peer, a_model(), "model", session)
    entry.bindings.append(binding)
    sessions: Any = SimpleNamespace(
        bindings={(peer.number, 0): binding},
        wait_for=lambda binding, record: binding.backlog.append(record),
    )
    requests: Any = SimpleNamespace(admit=lambda binding, record: admitted.append(record))
    dispatcher = Dispatcher(NOWHERE, sessions, requests, NOWHERE, NOWHERE, NOWHERE)

    def take(number: int) -> Infer:
        step = SequenceStep("7", number == 0, ends=False)
        record = Infer(number, InferForm(0, (), ("y",), "normal"), (), REGION, step=step)
        dispatcher.take(Arrival(peer, record, None))
        return record

    def bytes_come(inputs: object) -> bool:
        """They are not here yet, and come before the next look."""
        arrival.holds_requests = session.awaits_bytes = False
        return False

    arrival.may_begin = (lambda inputs: False) if is_let_in else bytes_come
    steps = [take(0), take(1)]
    if is_let_in:
        arrival.may_begin = bytes_come
        dispatcher.settle(LoadArrival(entry))
    assert admitted == []
    dispatcher.settle(LoadArrival(entry))
    assert admitted == steps
