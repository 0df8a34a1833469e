"""Sequences on a real server: controls, implicit state, against ONNX Runtime fed by hand."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from brisk.triton.launch import TritonServer
from brisk_client.inference import Transport
from support.server.entries import ANY_CLASS, write_entry
from support.server.running import StartServer, runtime_processes
from support.server.scraping import value, wait_for
from support.server.sequence_clients import (
    INT64,
    ByHand,
    SequenceClient,
    accumulator,
    controlled,
    direct,
    growing,
    oldest,
    recurrent,
    state,
    stream,
    tensor,
)
from support.waiting import wait_until

pytestmark = pytest.mark.server

BRISK = 'backend: "brisk"\n'
SUM = state("sum", "next", "FP32", "2", "dims: [ 2 ] zero_data: true")
X = f"input [ {tensor('x', 'FP32', '2')} ]\n"
Y = f"output [ {tensor('y', 'FP32', '2')} ]\n"
X1, Y1 = X.replace("2 ]", "1 ]"), Y.replace("2 ]", "1 ]")
CONTROLS = """
control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }
control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] } }
control_input { name: "END" control { kind: CONTROL_SEQUENCE_END bool_false_true: [false, true] } }
control_input { name: "CORRID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } }
"""
RECURRENT = (
    state("h", "h_next", "FP32", "8", "dims: [ 8 ] zero_data: true"),
    state("c", "c_next", "FP32", "8", 'dims: [ 8 ] data_file: "c"'),
)
FIRST_C = np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 8)


@pytest.fixture(scope="module")
def server(start_shared: StartServer, tmp_path_factory: pytest.TempPathFactory) -> TritonServer:
    repository = tmp_path_factory.mktemp("sequences")
    batch = BRISK + "max_batch_size: 4\n"
    write_entry(repository, "direct", accumulator(), batch + X + Y + direct(SUM))
    write_entry(repository, "oldest", accumulator(), batch + X + Y + oldest(SUM) + ANY_CLASS)
    write_entry(repository, "completed", accumulator(), BRISK + oldest(SUM))
    write_entry(
        repository,
        "unbatched",
        accumulator((2,)),
        BRISK + X + Y + oldest(SUM) + "instance_group { count: 2 kind: KIND_CPU }",
    )
    shown = f"output [ {tensor('y', 'FP32', '2')}, {tensor('next', 'FP32', '2')} ]\n"
    write_entry(repository, "shown", accumulator(), batch + X + shown + direct(SUM))
    write_entry(
        repository, "bare", accumulator(), batch + X + Y + direct(SUM.split("initial")[0] + "}")
    )
    warm_up = 'model_warmup { name: "zeros" batch_size: 1 inputs { key: "x" value { '
    warm_up += "data_type: TYPE_FP32 dims: [ 2 ] zero_data: true } } }\n"
    write_entry(repository, "warmed", accumulator(), batch + X + Y + oldest(SUM) + warm_up)
    whole = state("sum", "next", "INT64", "2", 'dims: [ 2 ] data_file: "sum"')
    entry = write_entry(
        repository,
        "whole",
        accumulator(element=INT64),
        batch + X.replace("FP32", "INT64") + Y.replace("FP32", "INT64") + oldest(whole),
    )
    (entry / "initial_state").mkdir()
    (entry / "initial_state" / "sum").write_bytes(np.array([2**53 + 1, -7], np.int64).tobytes())
    for name, first in (("growing", 0), ("growing_from_3", 3)):
        grown = state("before", "after", "FP32", "-1, 2", f"dims: [ {first}, 2 ] zero_data: true")
        write_entry(repository, name, growing(), batch + X + Y + oldest(grown))
    for name, batching in (("recurrent", oldest), ("recurrent_direct", direct)):
        entry = write_entry(
            repository,
            name,
            recurrent(),
            batch + X.replace("2 ]", "8 ]") + Y.replace("2 ]", "8 ]") + batching(*RECURRENT),
        )
        (entry / "initial_state").mkdir()
        (entry / "initial_state" / "c").write_bytes(FIRST_C.tobytes())
    seen = "".join(
        f"output {tensor(name, kind, '1')}\n"
        for name, kind in (
            ("first", "FP32"),
            ("ready", "INT32"),
            ("last", "BOOL"),
            ("whose", "UINT64"),
        )
    )
    write_entry(repository, "controlled", controlled(), batch + X1 + Y1 + seen + direct(CONTROLS))
    write_entry(repository, "uncontrolled", accumulator(), batch + X + Y + direct(CONTROLS, SUM))
    return start_shared(repository)


def steps(seed: int, count: int, width: int = 2) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.standard_normal((1, width)).astype(np.float32) for _ in range(count)]


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


ACCUMULATOR = ByHand(accumulator(), {"sum": ("next", zeros(1, 2))})
RECURRENCE = ByHand(recurrent(), {"h": ("h_next", zeros(1, 8)), "c": ("c_next", FIRST_C)})


def assert_equal(answers: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert len(answers) == len(expected)
    for answer, wanted in zip(answers, expected, strict=True):
        np.testing.assert_allclose(answer, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("transport", list(Transport))
@pytest.mark.parametrize(
    "model", ["direct", "oldest", "completed", "bare", "uncontrolled", "shown"]
)
@pytest.mark.parametrize("key", [7, "seven", 2**62 + 5], ids=str)
def test_a_sequence_hands_its_state_on(
    server: TritonServer, transport: Transport, model: str, key: int | str
) -> None:
    if model == "uncontrolled" and key == "seven":
        pytest.skip("strings are no correlation ids for its CORRID control")
    sequence = steps(1, 4)
    with SequenceClient(server, transport) as client:
        for _ in range(2):
            assert_equal(client.whole(model, key, sequence), ACCUMULATOR.answers(sequence))


@pytest.mark.parametrize("transport", list(Transport))
def test_models_without_a_batch_dimension_have_states_too(
    server: TritonServer, transport: Transport
) -> None:
    sequences = {key: [x[0] for x in steps(key, 6)] for key in range(1, 7)}

    def ask(key: int) -> list[np.ndarray]:
        with SequenceClient(server, transport) as client:
            return client.whole("unbatched", key, sequences[key])

    with ThreadPoolExecutor(6) as pool:
        for key, answers in zip(sequences, pool.map(ask, sequences), strict=True):
            assert_equal(answers, list(np.cumsum(sequences[key], axis=0)))


@pytest.mark.parametrize("transport", list(Transport))
@pytest.mark.parametrize("model", ["recurrent", "recurrent_direct"])
def test_many_sequences_at_a_time_keep_their_states_apart(
    server: TritonServer, transport: Transport, model: str
) -> None:
    sequences = {key if key % 2 else f"s{key}": steps(key, 5 + key % 4, 8) for key in range(1, 13)}

    def ask(key: int | str) -> list[np.ndarray]:
        with SequenceClient(server, transport) as client:
            return client.whole(model, key, sequences[key])

    with ThreadPoolExecutor(len(sequences)) as pool:
        for key, answers in zip(sequences, pool.map(ask, sequences), strict=True):
            assert_equal(answers, RECURRENCE.answers(sequences[key]))


@pytest.mark.parametrize("model", ["recurrent", "recurrent_direct"])
def test_steps_that_nobody_waits_for_are_done_in_order(server: TritonServer, model: str) -> None:
    sequences: Mapping[int | str, list[np.ndarray]] = {
        key: steps(hash(key) % 99, 20, 8) for key in (3, 4, "c", "d")
    }
    for key, answers in stream(server, model, sequences).items():
        assert_equal(answers, RECURRENCE.answers(sequences[key]))


@pytest.mark.parametrize("model", ["growing", "growing_from_3"])
def test_a_state_may_grow(server: TritonServer, model: str) -> None:
    sequences: Mapping[int | str, list[np.ndarray]] = {
        key: steps(key, 3 * key) for key in (1, 2, 3)
    }
    for key, answers in stream(server, model, sequences).items():
        assert_equal(answers, list(np.cumsum(sequences[int(key)], axis=0)))


def test_integers_start_from_a_file_and_stay_exact(server: TritonServer) -> None:
    x = np.array([[1, 2**60]], np.int64)
    first = np.array([[2**53 + 1, -7]], np.int64)
    with SequenceClient(server, Transport.GRPC) as client:
        answers = client.whole("whole", 1, [x, x, x])
    for index, answer in enumerate(answers, 1):
        np.testing.assert_array_equal(answer, first + index * x)


def test_warm_up_requests_belong_to_no_sequence_and_that_is_said(server: TritonServer) -> None:
    sequence = steps(3, 4)
    with SequenceClient(server, Transport.GRPC) as client:
        assert_equal(client.whole("warmed", 5, sequence), ACCUMULATOR.answers(sequence))
    assert "model 'warmed' version 1: model_warmup has no effect" in server.log.read_text()
    asked = len(sequence)
    found = wait_for(
        server, lambda series: value(series, "brisk_requests_total", model="warmed") >= asked
    )
    assert value(found, "brisk_requests_total", model="warmed") == asked


def test_a_start_in_the_middle_begins_anew(server: TritonServer) -> None:
    one = np.ones((1, 2), np.float32)
    with SequenceClient(server, Transport.HTTP) as client:
        assert client.step("oldest", 5, one, start=True)["y"][0, 0] == 1
        assert client.step("oldest", 5, one)["y"][0, 0] == 2
        assert client.step("oldest", 5, one, start=True)["y"][0, 0] == 1
        assert client.step("oldest", 5, one, end=True)["y"][0, 0] == 2
        with pytest.raises(InferenceServerException, match="START"):
            client.step("oldest", 5, one)


def test_a_state_is_answered_where_it_is_an_output_too(server: TritonServer) -> None:
    one = np.ones((1, 2), np.float32)
    with SequenceClient(server, Transport.HTTP) as client:
        first = client.step("shown", 5, one, start=True)
        only = client.step("shown", 5, one, end=True, outputs=["next"])
        assert first.keys() == {"y", "next"}
        assert first["next"][0, 0] == 1
        assert only.keys() == {"next"}
        assert only["next"][0, 0] == 2
        assert client.step("direct", 5, one, start=True, end=True).keys() == {"y"}


@pytest.mark.parametrize("transport", list(Transport))
def test_controls_reach_the_model(server: TritonServer, transport: Transport) -> None:
    def ask(key: int) -> None:
        x = np.full((1, 1), key, np.float32)
        with SequenceClient(server, transport) as client:
            for index in range(4):
                start, end = index == 0, index == 3
                seen = client.step("controlled", key, x, start, end)
                assert {name: value.item() for name, value in seen.items()} == {
                    "y": float(key),
                    "first": float(start),
                    "ready": 1,
                    "last": end,
                    "whose": key,
                }

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(ask, range(1, 7)))


def test_a_correlation_id_that_its_control_cannot_hold_is_refused(server: TritonServer) -> None:
    with (
        SequenceClient(server, Transport.HTTP) as client,
        pytest.raises(InferenceServerException, match="\"text\" is no value of control 'CORRID'"),
    ):
        client.step("controlled", "text", np.ones((1, 1), np.float32), start=True)


def test_a_refused_request_leaves_the_state_as_it_was(server: TritonServer) -> None:
    one = np.ones((1, 2), np.float32)
    with SequenceClient(server, Transport.HTTP) as client:
        client.step("oldest", 8, one, start=True)
        with pytest.raises(InferenceServerException, match="time-out ran out"):
            client.step("oldest", 8, one, timeout=1)  # microseconds
        with pytest.raises(InferenceServerException, match="in another worker"):
            client.step("oldest", 8, one, parameters={"brisk_class": "besteffort"})
        assert (
            client.step("oldest", 8, one, parameters={"brisk_class": "realtime"})["y"][0, 0] == 2
        )
        with pytest.raises(InferenceServerException, match="brisk_class must be one of"):
            client.step("oldest", 8, one, start=True, parameters={"brisk_class": "urgent"})
        with pytest.raises(InferenceServerException, match="sequence 8 has not begun"):
            client.step("oldest", 8, one)
        assert client.step("oldest", 8, one, start=True, end=True)["y"][0, 0] == 1


def test_states_are_lost_with_their_worker_and_that_is_said(server: TritonServer) -> None:
    one = np.ones((1, 2), np.float32)
    with SequenceClient(server, Transport.GRPC) as client:
        for key in (21, "twenty-two"):
            client.step("oldest", key, one, start=True)
            assert client.step("oldest", key, one)["y"][0, 0] == 2
        _, worker = runtime_processes(server)
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: runtime_processes_or_none(server) not in (None, worker), "a new worker")
        for key in (21, "twenty-two"):
            for _ in range(2):
                with pytest.raises(
                    InferenceServerException, match=r"state of sequence .* is lost"
                ):
                    client.step("oldest", key, one)
            assert client.step("oldest", key, one, start=True)["y"][0, 0] == 1
            assert client.step("oldest", key, one, end=True)["y"][0, 0] == 2


def runtime_processes_or_none(server: TritonServer) -> int | None:
    try:
        return runtime_processes(server)[1]
    except (ValueError, OSError):
        return None


def test_steps_under_way_when_the_worker_dies_are_right_or_errors(server: TritonServer) -> None:
    """Never an answer from a state that has lost steps."""
    stop, wrong, lost, answered = threading.Event(), [], [], []

    def ask(key: int) -> None:
        sequence = steps(key, key, 8)
        expected = RECURRENCE.answers(sequence)
        with SequenceClient(server, Transport.GRPC) as client:
            while not stop.is_set():
                try:
                    for index, x in enumerate(sequence):
                        is_last = index == len(sequence) - 1
                        answer = client.step("recurrent", key, x, index == 0, is_last)["y"]
                        answered.append(key)
                        if not np.allclose(answer, expected[index], rtol=1e-5, atol=1e-6):
                            wrong.append((key, index))
                except InferenceServerException as error:
                    lost.append(key)
                    if "is lost" not in str(error):
                        wrong.append((key, str(error)))

    threads = [threading.Thread(target=ask, args=(key,)) for key in range(21, 27)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(4):
            before = len(answered)
            wait_until(lambda before=before: len(answered) > before + 100, "answers")
            os.kill(runtime_processes(server)[1], signal.SIGKILL)
        before = len(answered)
        wait_until(lambda before=before: len(answered) > before + 100, "answers")
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=60)
    assert wrong == []
    assert lost
