"""What stubs of small models compute after a worker's death, and requests answered in strings."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.telemetry.observer import Observer
from brisk.triton.launch import TritonServer
from brisk_client.inference import InferenceClient, Transport
from support.server.entries import make_model, write_entry
from support.server.running import StartServer, runtime_directory
from support.server.scraping import value, wait_for
from support.server.small_models import (
    BATCHING,
    ONE_INSTANCE,
    SIGNATURE,
    WIDE,
    WIDTH,
    computed,
    environment_of,
    expected,
    heat,
    rows,
    small,
)
from support.waiting import TIMED, wait_until

pytestmark = [pytest.mark.server, pytest.mark.timing]

LABELS = (
    f'backend: "brisk" max_batch_size: 8 {ONE_INSTANCE} input [ {{ name: "x" {WIDE} }} ] '
    'output [ { name: "y" data_type: TYPE_STRING dims: [ 1 ] } ] '
)


def labels() -> onnx.ModelProto:
    """The name of the greatest value of each row."""
    names = helper.make_tensor(
        "names", TensorProto.STRING, [WIDTH], [b"%d" % n for n in range(WIDTH)]
    )
    model = make_model(
        [
            helper.make_node("ArgMax", ["x"], ["place"], axis=1, keepdims=1),
            helper.make_node("Gather", ["names", "place"], ["y"]),
        ],
        [("x", TensorProto.FLOAT, ("batch", WIDTH))],
        [("y", TensorProto.STRING, ("batch", 1))],
        [],
    )
    model.graph.initializer.append(names)
    return model


@pytest.fixture(scope="module")
def server(start_shared: StartServer, tmp_path_factory: pytest.TempPathFactory) -> TritonServer:
    place = tmp_path_factory.mktemp("offers")
    repository = place / "models"
    write_entry(repository, "offered", small(), SIGNATURE)
    write_entry(repository, "labels", labels(), LABELS + BATCHING)
    return start_shared(repository, (), environment_of(place))


@pytest.fixture
def client(server: TritonServer) -> Iterator[InferenceClient]:
    with InferenceClient(server.endpoints.grpc or "", Transport.GRPC) as made:
        yield made


def test_a_new_worker_makes_its_own_offer(server: TritonServer, client: InferenceClient) -> None:
    """The old one's gate says nothing of real-time work that the new one computes."""
    heat(server, client, "offered")
    place = RuntimePaths(runtime_directory(server), "cpu")
    with Observer(place, Role.FOREGROUND) as observer:
        os.kill(observer.status().pid, signal.SIGKILL)
    with TIMED:
        wait_until(lambda: "connected to a new worker" in server.log_text(), "a new worker")
    ran = "brisk_run_requests_sum"
    before = value(wait_for(server, lambda _series: True), ran, model="offered")
    for seed in range(20):
        y = client.infer("offered", {"x": rows(1, seed)})["y"]
        np.testing.assert_allclose(y, expected(rows(1, seed)), rtol=1e-4, atol=1e-5)
    wait_for(server, lambda series: value(series, ran, model="offered") >= before + 20)
    by_stub = computed(server, "offered")

    def is_offered_again() -> bool:
        for _ in range(20):
            client.infer("offered", {"x": rows()})
        return computed(server, "offered") > by_stub

    with TIMED:
        wait_until(is_offered_again, "the next offer", every_s=0.1)


def test_requests_whose_answers_are_strings_are_computed_once(
    server: TritonServer, client: InferenceClient
) -> None:
    """Strings of a joined answer cannot be told apart, which is learned from the first one."""

    def ask(seed: int) -> None:
        x = rows(1, seed)
        with InferenceClient(server.endpoints.grpc or "", Transport.GRPC) as own:
            for _ in range(5):
                (name,) = own.infer("labels", {"x": x})["y"].ravel()
                assert int(name) == x.argmax()

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(ask, range(24)))
    found = wait_for(
        server, lambda series: value(series, "brisk_requests_total", model="labels") >= 120
    )
    ran = value(found, "brisk_run_requests_sum", model="labels")
    assert 120 <= ran <= 120 + 2 * 8, "no more than what was joined at first runs again"
