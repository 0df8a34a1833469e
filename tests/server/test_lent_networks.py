"""A small sample that its frontends compute themselves, asked through a real server."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest
from running import SAMPLES, runtime_directory
from tritonclient import http
from tritonclient.utils import InferenceServerException

from brisk.observer import Observer
from brisk.server.launch import TritonServer
from brisk.wire.place import RuntimePlace
from brisk.wire.records import ModelStatus
from brisk.wire.role import Role
from brisk_client.inference import InferenceClient, Transport
from brisk_client.samples.expectations import read_expectations
from runtime_processes import processes_started_in
from waiting import wait_until

pytestmark = pytest.mark.server

MODEL = "digits_cnn"
CLIENTS = 8
PATIENCE_S = 60.0


def newest(server: TritonServer) -> ModelStatus:
    """The state of the model's newest version, which answers where none is named."""
    with Observer(RuntimePlace(runtime_directory(server), "cpu"), Role.FOREGROUND) as observer:
        found = [each for each in observer.status().models if each.name == MODEL]
    return max(found, key=lambda model: model.version)


@pytest.fixture
def server(sample_server: TritonServer) -> TritonServer:
    wait_until(lambda: newest(sample_server).lent > 0, "a loan", PATIENCE_S)
    return sample_server


def right(outputs: dict[str, np.ndarray]) -> bool:
    expected = read_expectations(SAMPLES / MODEL)[-1].outputs["logits"]
    return np.allclose(outputs["logits"], expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("transport", list(Transport))
def test_lent_networks_answer_right_and_are_counted(
    server: TritonServer, transport: Transport
) -> None:
    inputs = read_expectations(SAMPLES / MODEL)[-1].inputs
    before = newest(server).answered
    url = server.endpoints.http if transport is Transport.HTTP else server.endpoints.grpc
    with InferenceClient(url or "", transport) as client:
        for _ in range(20):
            assert right(client.infer(MODEL, inputs))
        assert list(client.infer(MODEL, inputs, outputs=["digit"])) == ["digit"]
    assert newest(server).answered == before + 21


def ask(server: TritonServer, **parameters: str) -> np.ndarray:
    """The logits that Triton's own client gets for the sample's input."""
    (value,) = read_expectations(SAMPLES / MODEL)[-1].inputs.values()
    described = http.InferInput("image", list(value.shape), "FP32")
    described.set_data_from_numpy(value)
    with http.InferenceServerClient(server.endpoints.http) as client:
        answer = client.infer(MODEL, [described], parameters=parameters)
    logits = answer.as_numpy("logits")
    assert logits is not None
    return logits


def test_best_effort_requests_still_go_to_the_background_worker(server: TritonServer) -> None:
    before = newest(server).answered
    assert right({"logits": ask(server, brisk_class="besteffort")})
    assert newest(server).answered == before  # of the foreground worker and its frontends
    place = RuntimePlace(runtime_directory(server), "cpu")
    with Observer(place, Role.BACKGROUND) as observer:
        models = observer.status().models
    assert any(model.name == MODEL and model.answered for model in models)


@pytest.mark.parametrize(
    "parameter", [("brisk_class", "urgent"), ("brisk_klass", "normal"), ("brisk_accuracy", "2")]
)
def test_wrong_parameters_are_refused_as_ever(
    server: TritonServer, parameter: tuple[str, str]
) -> None:
    name, value = parameter
    with pytest.raises(InferenceServerException, match=name):
        ask(server, **{name: value})


def test_clients_of_a_lent_network_notice_nothing_of_a_worker_that_dies(
    server: TritonServer,
) -> None:
    inputs = read_expectations(SAMPLES / MODEL)[-1].inputs
    stop, wrong, answers = threading.Event(), [], [0] * CLIENTS

    def work(number: int) -> None:
        with InferenceClient(server.endpoints.grpc or "", Transport.GRPC) as client:
            while not stop.is_set():
                try:
                    if not right(client.infer(MODEL, inputs)):
                        wrong.append("a wrong answer")
                    answers[number] += 1
                except Exception as error:  # noqa: BLE001  # whatever a client sees is wrong
                    wrong.append(repr(error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: sum(answers) > 200, "answers", PATIENCE_S)
        os.kill(worker_of(server), signal.SIGKILL)
        before = sum(answers)
        wait_until(lambda: sum(answers) > before + 200, "more answers", PATIENCE_S)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert wrong == []


def worker_of(server: TritonServer) -> int:
    with Observer(RuntimePlace(runtime_directory(server), "cpu"), Role.FOREGROUND) as observer:
        process = observer.status().pid
    assert process in processes_started_in(runtime_directory(server))
    return process
