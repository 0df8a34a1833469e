"""Classes of requests across models: urgent work does not wait for work that is not."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from brisk.triton.launch import TritonServer
from brisk_client.inference import InferenceClient, Transport
from support.runtime.runtime_processes import hurrying_best_effort
from support.server.entries import ANY_CLASS, deep, deep_answer, doubled, write_entry
from support.server.running import StartServer, runtime_directory
from support.waiting import TIMED

pytestmark = [pytest.mark.server, pytest.mark.timing]

LAYERS, ROWS = 36, 8192
"""That keep ``background`` busy for about a second, in segments of some ten milliseconds."""


@pytest.fixture(scope="module")
def server(start_shared: StartServer, tmp_path_factory: pytest.TempPathFactory) -> TritonServer:
    repository = tmp_path_factory.mktemp("priorities")
    config = (
        'backend: "brisk" '
        'parameters { key: "brisk_class" value { string_value: "besteffort" } } '
        'input [ { name: "x" data_type: TYPE_FP32 dims: [ 8192, 512 ] } ] '
        'output [ { name: "y" data_type: TYPE_FP32 dims: [ 8192, 512 ] } ] '
    )
    write_entry(repository, "background", deep(LAYERS, rows=ROWS), config)
    write_entry(repository, "urgent", doubled(), 'backend: "brisk"' + ANY_CLASS)
    return start_shared(repository)


def test_an_urgent_request_interrupts_a_long_one_which_then_ends_right(
    server: TritonServer,
) -> None:
    x = np.random.default_rng(0).random((ROWS, 512), np.float32)
    ended: list[float] = []
    right: list[bool] = []

    def work() -> None:
        with InferenceClient(server.endpoints.grpc, Transport.GRPC) as client:
            answer = client.infer("background", {"x": x})["y"]
            ended.append(time.monotonic())
            right.append(np.allclose(answer, deep_answer(x, LAYERS), atol=1e-5))

    def alone_s() -> float:
        started_s = time.monotonic()
        work()
        return time.monotonic() - started_s

    with hurrying_best_effort(runtime_directory(server)):
        alone_s()  # the first run of a network is a cold one
        long_s = alone_s()
    waits_s = []
    with InferenceClient(server.endpoints.grpc, Transport.GRPC) as client:
        small = np.ones((1, 4), np.float32)
        thread = threading.Thread(target=work)
        thread.start()
        time.sleep(long_s * 0.4)
        while not len(ended) > 2:
            started_s = time.monotonic()
            client.infer("urgent", {"x": small}, parameters={"brisk_class": "realtime"})
            waits_s.append(time.monotonic() - started_s)
            time.sleep(0.02)
        thread.join()
    assert right == [True, True, True]
    assert len(waits_s) > 2
    with TIMED:
        assert float(np.median(waits_s)) < long_s / 5


def test_a_running_request_past_its_time_ends_at_the_next_segment(server: TritonServer) -> None:
    from tritonclient import grpc

    x = np.ones((ROWS, 512), np.float32)
    described = grpc.InferInput("x", list(x.shape), "FP32")
    described.set_data_from_numpy(x)
    client = grpc.InferenceServerClient(server.endpoints.grpc)
    told = r"time-out ran out: it is 100\.0 ms, and .* ms have passed since it came"
    with pytest.raises(InferenceServerException, match=told):
        client.infer("background", [described], timeout=100_000)
    client.close()
