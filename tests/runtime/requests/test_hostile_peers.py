"""Peers that break the protocol are dropped; the worker and everybody else go on."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brisk import __version__
from brisk.protocol.channel import MAX_RECORD_BYTES, Receiver, encode_record, send_record
from brisk.protocol.records import (
    PROTOCOL_VERSION,
    AttachSlab,
    Cancel,
    ComputeInStub,
    DetachSlab,
    Failure,
    Hello,
    Infer,
    InferForm,
    LoadFailed,
    LoadModel,
    Log,
    ModelLoaded,
    Record,
    Refused,
    Region,
    Release,
    TensorForm,
    Welcome,
)
from brisk.protocol.runtime_paths import RuntimePaths
from brisk.protocol.shared_memory import mark_is_set
from brisk.stub.runtime_client.client import RuntimeClient
from brisk.stub.runtime_client.pending import MAX_STRIKES
from support.runtime.runtime_process import (
    SLOW_INPUT,
    attach,
    describe,
    infer,
    memory_file,
    opened,
    quick_model,
    submit_marked,
    worker_of,
)
from support.waiting import wait_until

HELLO = Hello(PROTOCOL_VERSION, __version__, 1, 0)
MARK = Region(0, 0, 64)
INPUT = Region(0, 64, 16)
ROW = np.ones((1, 4), np.float32)


@pytest.fixture(scope="module")
def good(
    shared_place: RuntimePaths, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RuntimeClient]:
    """A well-behaved connection that must notice nothing."""
    model = quick_model(tmp_path_factory.mktemp("good") / "good.onnx")
    with opened(shared_place, describe(model, max_batch_size=8, batching=True)) as connection:
        yield connection


@pytest.fixture
def others_go_on(shared_place: RuntimePaths, good: RuntimeClient) -> Iterator[None]:
    worker = worker_of(shared_place)
    yield
    np.testing.assert_array_equal(infer(good, ROW), -ROW)
    assert worker_of(shared_place) == worker


@pytest.fixture
def raw(shared_place: RuntimePaths, others_go_on: None) -> Iterator[socket.socket]:
    with shared_place.connect(10.0) as connection:
        yield connection


@pytest.fixture
def welcome(raw: socket.socket) -> socket.socket:
    send_record(raw, HELLO)
    answer, _ = Receiver(raw).receive()
    assert isinstance(answer, Welcome)
    return raw


def load(path: Path, mark: Region = MARK, model: int = 0) -> LoadModel:
    return LoadModel("m", 1, str(path), 8, True, 16, "normal", mark=mark, model=model)


def ask(model: int = 0, region: Region = INPUT, mark: Region = MARK) -> Infer:
    form = InferForm(model, (TensorForm("x", "FP32", (1, 4)),), ("y",), "normal")
    return Infer(1, form, (region,), mark)


def assert_dropped(connection: socket.socket) -> None:
    receiver = Receiver(connection)
    for _ in range(1000):
        try:
            receiver.receive()
        except (EOFError, ConnectionError):
            return
    pytest.fail("the connection still lives")


def next_failure(receiver: Receiver) -> Failure:
    while not isinstance(answer := receiver.receive()[0], Failure):
        pass
    return answer


@pytest.mark.parametrize(
    "data",
    [b"garbage", b"\0" * 1000, b"[" * MAX_RECORD_BYTES, b"[0,[]]", encode_record(Cancel(1))],
    ids=["words", "zeros", "brackets", "an empty Hello", "no Hello"],
)
def test_a_peer_that_does_not_greet_is_dropped(raw: socket.socket, data: bytes) -> None:
    raw.send(data)
    assert_dropped(raw)


@pytest.mark.parametrize(
    "hello",
    [Hello(PROTOCOL_VERSION + 1, __version__, 1, 0), Hello(PROTOCOL_VERSION, "0.0.0", 1, 0)],
    ids=["protocol", "version"],
)
def test_another_version_is_told_what_it_met_and_what_to_do(
    raw: socket.socket, hello: Hello
) -> None:
    send_record(raw, hello)
    answer, _ = Receiver(raw).receive()
    assert isinstance(answer, Refused)
    assert f"this runtime is Brisk {__version__}" in answer.message
    assert "BRISK_RUNTIME_DIR" in answer.message
    assert_dropped(raw)


@pytest.mark.parametrize(
    "record",
    [
        HELLO,
        Welcome(1, "1", 1),
        Log("info", "x"),
        Failure(1, "internal", "x"),
        ModelLoaded(0, 1),
        DetachSlab(5),
        ask(),
        load(Path("/nowhere"), Region(9, 0, 64)),
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_record_out_of_place_ends_the_connection(welcome: socket.socket, record: Record) -> None:
    send_record(welcome, record)
    assert_dropped(welcome)


@pytest.mark.parametrize("record", [Cancel(5), Release(5)])
def test_a_record_about_something_that_is_over_is_no_offence(
    welcome: socket.socket, record: Record
) -> None:
    """It may have crossed the answer on its way."""
    send_record(welcome, record)
    attach(welcome)
    send_record(welcome, ask(model=3))
    answer, _ = Receiver(welcome).receive()
    assert isinstance(answer, Failure)
    assert answer.code == "not_loaded"


@pytest.mark.parametrize(
    "region",
    [Region(0, 4090, 16), Region(7, 0, 16), Region(0, -16, 16)],
    ids=["beyond the end", "unknown slab", "before the start"],
)
def test_inputs_outside_of_shared_memory_end_the_connection(
    welcome: socket.socket, quick: Path, region: Region
) -> None:
    attach(welcome)
    send_record(welcome, load(quick))
    send_record(welcome, ask(region=region))
    assert_dropped(welcome)


@pytest.mark.parametrize("size", [0, 1, 63])
def test_a_mark_that_is_too_small_ends_the_connection_of_a_request(
    welcome: socket.socket, quick: Path, size: int
) -> None:
    attach(welcome)
    send_record(welcome, load(quick))
    send_record(welcome, ask(mark=Region(0, 0, size)))
    assert_dropped(welcome)


def test_a_mark_that_is_too_small_for_a_load_does_not_stop_other_loads(
    shared_place: RuntimePaths, welcome: socket.socket, quick: Path
) -> None:
    attach(welcome)
    send_record(welcome, load(quick, Region(0, 0, 0)))
    assert_dropped(welcome)
    with opened(shared_place, describe(quick)) as connection:
        np.testing.assert_array_equal(infer(connection, ROW), -ROW)


def test_memory_that_could_shrink_under_the_worker_is_refused(welcome: socket.socket) -> None:
    descriptor = memory_file(seals=fcntl.F_SEAL_GROW)
    send_record(welcome, AttachSlab(0, 4096), descriptor)
    os.close(descriptor)
    assert_dropped(welcome)


def test_a_size_that_does_not_fit_the_shape_is_the_request_s_fault(
    welcome: socket.socket, quick: Path
) -> None:
    attach(welcome)
    send_record(welcome, load(quick))
    send_record(welcome, ask(region=Region(0, 64, 12)))
    answer = next_failure(Receiver(welcome))
    assert answer.code == "invalid_request"
    assert "takes 16 bytes, got 12" in answer.message


def test_a_negative_size_is_the_request_s_fault(welcome: socket.socket, quick: Path) -> None:
    """Also of the first dimension, by which requests are joined."""
    attach(welcome)
    send_record(welcome, load(quick))
    form = InferForm(0, (TensorForm("x", "FP32", (-1, 4)),), ("y",), "normal")
    receiver = Receiver(welcome)
    while not isinstance(receiver.receive()[0], ModelLoaded):
        pass
    for number in range(10):
        send_record(welcome, Infer(number, form, (INPUT,), MARK))
    for _ in range(10):
        answer = next_failure(receiver)
        assert answer.code == "invalid_request"
        assert "has shape [-1, 4]; expected sizes of 0 or more" in answer.message


def test_a_model_number_used_twice_is_refused_and_the_first_stays(
    welcome: socket.socket, quick: Path
) -> None:
    attach(welcome)
    send_record(welcome, load(quick))
    send_record(welcome, load(quick))
    receiver = Receiver(welcome)
    answers: set[type] = set()
    while not answers >= {ModelLoaded, LoadFailed}:
        answers.add(type(receiver.receive()[0]))


@pytest.mark.parametrize("is_greeted", [False, True])
def test_descriptors_that_no_worker_expects_are_not_kept(
    shared_place: RuntimePaths, others_go_on: None, *, is_greeted: bool
) -> None:
    worker = worker_of(shared_place)

    def held() -> int:
        return len(list(Path(f"/proc/{worker}/fd").iterdir()))

    time.sleep(0.1)
    before = held()
    for _ in range(20):
        with shared_place.connect(10.0) as connection:
            if is_greeted:
                send_record(connection, HELLO)
                send_record(connection, ComputeInStub(0, "form", 1, 1), connection.fileno())
            else:
                attach(connection)
            assert_dropped(connection)
    wait_until(lambda: held() <= before, f"{before} descriptors")


def test_a_peer_that_never_reads_harms_nobody(welcome: socket.socket, good: RuntimeClient) -> None:
    attach(welcome)
    welcome.setblocking(False)
    data = encode_record(ask(model=3))
    sent = 0
    while sent < 3000:
        try:
            welcome.send(data)
            sent += 1
        except BlockingIOError:
            time.sleep(0.001)
    np.testing.assert_array_equal(infer(good, ROW), -ROW)


def test_a_connection_that_is_dropped_is_no_worker_s_death(
    shared_place: RuntimePaths, others_go_on: None, slow: Path
) -> None:
    """The request that was running is sent again, however often that happens."""
    logged: list[str] = []
    client = RuntimeClient(shared_place, describe(slow), lambda level, text: logged.append(text))
    client.open()
    try:
        _, answer, begun = submit_marked(client, SLOW_INPUT)
        out_of_place: Any = DetachSlab(99)
        for turn in range(1, MAX_STRIKES + 2):
            wait_until(lambda: mark_is_set(begun), "its beginning")
            client.send(out_of_place)
            wait_until(lambda turn=turn: len(replays(logged)) == turn, "another connection")
        assert answer.output().shape == SLOW_INPUT.shape
    finally:
        client.close()


def replays(logged: list[str]) -> list[str]:
    return [text for text in logged if "1 requests replayed" in text]
