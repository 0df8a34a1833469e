"""Requests: wrong ones are refused, many at once are answered, limits and time-outs hold."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from onnx import TensorProto, helper
from tritonclient import grpc, http
from tritonclient.utils import InferenceServerException

from brisk.triton.launch import TritonServer
from brisk_client.inference import InferenceClient, Transport
from support.server.entries import ANY_CLASS, deep, deep_answer, doubled, make_model, write_entry
from support.server.running import StartServer
from support.waiting import TIMED

pytestmark = [pytest.mark.server, pytest.mark.timing]

SLOW_ROWS = 4096
"""Rows that keep ``slow`` busy for some hundred milliseconds, in segments of some ten."""

DEEP_IO = (
    'input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 512 ] } ] '
    'output [ { name: "y" data_type: TYPE_FP32 dims: [ -1, 512 ] } ] '
)


@pytest.fixture(scope="module")
def server(start_shared: StartServer, tmp_path_factory: pytest.TempPathFactory) -> TritonServer:
    repository = tmp_path_factory.mktemp("requests")
    write_entry(repository, "doubled", doubled(), 'backend: "brisk" max_batch_size: 8')
    write_entry(
        repository,
        "two_instances",
        doubled(),
        'backend: "brisk" instance_group [ { kind: KIND_CPU count: 2 } ]',
    )
    write_entry(
        repository,
        "batched",
        deep(4),
        'backend: "brisk" max_batch_size: 16 dynamic_batching { } '
        'input [ { name: "x" data_type: TYPE_FP32 dims: [ 512 ] } ] '
        'output [ { name: "y" data_type: TYPE_FP32 dims: [ 512 ] } ]',
    )
    write_entry(repository, "slow", deep(), 'backend: "brisk" ' + DEEP_IO)
    write_entry(
        repository,
        "narrow",
        deep(),
        'backend: "brisk" parameters { key: "brisk_max_queue_size" value { string_value: "2" } } '
        + DEEP_IO,
    )
    write_entry(repository, "any_class", doubled(), 'backend: "brisk"' + ANY_CLASS)
    divide = make_model(
        [helper.make_node("Reshape", ["x", "s"], ["y"])],
        [("x", TensorProto.FLOAT, ("n",)), ("s", TensorProto.INT64, (2,))],
        [("y", TensorProto.FLOAT, ("a", "b"))],
    )
    write_entry(repository, "reshape", divide)
    return start_shared(repository)


@pytest.fixture(params=list(Transport))
def client(server: TritonServer, request: pytest.FixtureRequest) -> Iterator[InferenceClient]:
    ends = server.endpoints
    url = ends.http if request.param is Transport.HTTP else ends.grpc
    with InferenceClient(url, request.param) as opened:
        yield opened


X = np.arange(8, dtype=np.float32).reshape(2, 4)


def slow_input(rows: int = SLOW_ROWS) -> np.ndarray:
    return np.ones((rows, 512), np.float32)


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        ({"x": X.astype(np.int32)}, "(?i)INT32.*FP32"),
        ({"x": X[:, :3]}, "shape|dim"),
        ({"x": X[0]}, "shape|dim"),
        ({}, "(?i)input"),
        ({"x": X, "w": X}, "(?i)input"),
        ({"x": np.ones((9, 4), np.float32)}, "batch"),
        ({"x": np.ones((0, 4), np.float32)}, "size mismatch"),
    ],
    ids=["dtype", "size", "rank", "missing", "unknown", "over the batch limit", "empty batch"],
)
def test_a_wrong_request_is_refused_and_the_next_is_answered(
    client: InferenceClient, inputs: dict[str, np.ndarray], reason: str
) -> None:
    with pytest.raises(InferenceServerException, match=reason):
        client.infer("doubled", inputs)
    np.testing.assert_array_equal(client.infer("doubled", {"x": X})["y"], 2 * X)


def test_only_the_requested_outputs_come_back(client: InferenceClient) -> None:
    assert set(client.infer("doubled", {"x": X})) == {"y", "z"}
    assert set(client.infer("doubled", {"x": X}, outputs=["z"])) == {"z"}


def test_a_class_is_taken_from_the_request_and_checked(client: InferenceClient) -> None:
    answer = client.infer("doubled", {"x": X}, parameters={"brisk_class": "besteffort"})
    np.testing.assert_array_equal(answer["z"], -X)
    with pytest.raises(InferenceServerException, match="realtime, normal, besteffort"):
        client.infer("doubled", {"x": X}, parameters={"brisk_class": "urgent"})
    with pytest.raises(InferenceServerException, match="unknown request parameter 'brisk_clas'"):
        client.infer("doubled", {"x": X}, parameters={"brisk_clas": "normal"})


@pytest.mark.parametrize("model", ["doubled", "two_instances"])
def test_a_class_above_the_entry_s_is_refused_and_named(
    client: InferenceClient, model: str
) -> None:
    """Whoever may ask one model must not therefore go before all requests of all others."""
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, {"x": X}, parameters={"brisk_class": "realtime"})
    text = str(caught.value)
    assert "asks for class 'realtime', but the entry allows 'normal' at most" in text
    assert "brisk_max_class" in text
    assert caught.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
    np.testing.assert_array_equal(client.infer(model, {"x": X})["y"], 2 * X)


def test_a_class_that_the_entry_allows_above_its_own_is_served(client: InferenceClient) -> None:
    for job_class in ("realtime", "normal", "besteffort"):
        answer = client.infer("any_class", {"x": X}, parameters={"brisk_class": job_class})
        np.testing.assert_array_equal(answer["y"], 2 * X)


def test_a_value_that_no_segment_can_take_is_the_requests_fault(client: InferenceClient) -> None:
    x = np.arange(6, dtype=np.float32)
    with pytest.raises(InferenceServerException, match=r"segment 0.*Reshape"):
        client.infer("reshape", {"x": x, "s": np.array([4, 2], np.int64)})
    answer = client.infer("reshape", {"x": x, "s": np.array([3, -1], np.int64)})
    np.testing.assert_array_equal(answer["y"], x.reshape(3, 2))


def test_many_clients_of_several_instances_are_all_answered(server: TritonServer) -> None:
    def ask(number: int) -> bool:
        with InferenceClient(server.endpoints.grpc, Transport.GRPC) as client:
            x = np.full((3, 4), number, np.float32)
            return all(
                np.array_equal(client.infer("two_instances", {"x": x})["y"], 2 * x)
                for _ in range(20)
            )

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        assert all(pool.map(ask, range(16)))


def test_requests_that_wait_are_joined_and_each_gets_its_own_rows(server: TritonServer) -> None:
    blocker = threading.Thread(target=_ask_slow, args=(server,))
    rng = np.random.default_rng(0)

    def ask(rows: int) -> bool:
        x = rng.random((rows, 512), np.float32)
        with InferenceClient(server.endpoints.grpc, Transport.GRPC) as client:
            answer = client.infer("batched", {"x": x})["y"]
        return np.allclose(answer, deep_answer(x, 4))

    blocker.start()
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        assert all(pool.map(ask, [1, 3, 16, 2, 5, 7, 1, 1, 4, 9, 2, 8]))
    blocker.join()


def _ask_slow(server: TritonServer, model: str = "slow") -> None:
    with InferenceClient(server.endpoints.grpc, Transport.GRPC) as client:
        client.infer(model, {"x": slow_input()})


def grpc_input(array: np.ndarray) -> list[grpc.InferInput]:
    described = grpc.InferInput("x", list(array.shape), "FP32")
    described.set_data_from_numpy(array)
    return [described]


def test_a_full_queue_is_unavailable_at_once(server: TritonServer) -> None:
    outcomes: list[str] = []
    done = threading.Event()

    def note(result: object, error: InferenceServerException | None) -> None:
        outcomes.append("answered" if error is None else f"{error.status()} {error.message()}")
        if len(outcomes) == 8:
            done.set()

    client = grpc.InferenceServerClient(server.endpoints.grpc)
    for _ in range(8):
        client.async_infer("narrow", grpc_input(slow_input()), note)
    assert done.wait(60)
    client.close()
    refused = [outcome for outcome in outcomes if outcome != "answered"]
    assert len(outcomes) - len(refused) >= 3  # one runs, two wait
    assert refused
    assert all("UNAVAILABLE" in text and "brisk_max_queue_size" in text for text in refused)


@pytest.mark.parametrize("timeout_us", [2**53, 2**63 - 1])
def test_an_absurd_time_out_is_none_and_ends_no_connection(
    server: TritonServer, timeout_us: int
) -> None:
    client = http.InferenceServerClient(server.endpoints.http)
    described = http.InferInput("x", list(X.shape), "FP32")
    described.set_data_from_numpy(X)
    for _ in range(3):
        answer = client.infer("doubled", [described], timeout=timeout_us)
        np.testing.assert_array_equal(answer.as_numpy("y"), 2 * X)
    client.close()


def _ask_until_told(
    client: http.InferenceServerClient, described: http.InferInput, asked_s: list[float]
) -> None:
    """Some requests find the device idle, between two slow ones, and are answered."""
    for _ in range(200):
        asked_s.append(time.monotonic())
        client.infer("doubled", [described], timeout=20_000)


def test_a_request_whose_time_runs_out_in_the_queue_is_told_so(server: TritonServer) -> None:
    told = threading.Event()
    asked_s: list[float] = []

    def keep_busy() -> None:
        while not told.is_set():
            _ask_slow(server)

    blocker = threading.Thread(target=keep_busy)
    client = http.InferenceServerClient(server.endpoints.http)
    described = http.InferInput("x", list(X.shape), "FP32")
    described.set_data_from_numpy(X)
    blocker.start()
    try:
        late = r"time-out ran out: it is 20\.0 ms, and .* ms have passed since it came"
        with pytest.raises(InferenceServerException, match=late):
            _ask_until_told(client, described, asked_s)
        # Due after 20 ms, and told at the run's next segment boundary: segments take some ten.
        # The rest is for a machine that others use: HTTP, stub and worker wait for processors.
        with TIMED:
            assert 0.015 < time.monotonic() - asked_s[-1] < 0.6
    finally:
        told.set()
        blocker.join()
        client.close()


def test_a_cancelled_request_frees_its_place(server: TritonServer) -> None:
    client = grpc.InferenceServerClient(server.endpoints.grpc)
    ended = threading.Event()
    outcomes: list[InferenceServerException | None] = []

    def note(result: object, error: InferenceServerException | None) -> None:
        outcomes.append(error)
        if len(outcomes) == 6:
            ended.set()

    calls = [client.async_infer("slow", grpc_input(slow_input()), note) for _ in range(6)]
    time.sleep(0.1)
    for call in calls:
        call.cancel()
    assert ended.wait(20)
    started_s = time.monotonic()
    with InferenceClient(server.endpoints.grpc, Transport.GRPC) as other:
        other.infer("doubled", {"x": X})
    waited_s = time.monotonic() - started_s
    client.close()
    cancelled = [error for error in outcomes if error is not None]
    assert len(cancelled) >= 5
    one_s = _duration_s(server)
    with TIMED:
        assert waited_s < 3 * one_s, (
            f"waited {waited_s:.2f} s, one slow request takes {one_s:.2f} s"
        )


def _duration_s(server: TritonServer) -> float:
    started_s = time.monotonic()
    _ask_slow(server)
    return time.monotonic() - started_s
