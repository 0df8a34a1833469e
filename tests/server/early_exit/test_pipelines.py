"""Pipeline entries in a real Triton: completed, asked, timed, refused."""

from __future__ import annotations

import numpy as np
import pytest
from tritonclient import http
from tritonclient.utils import InferenceServerException

from brisk.triton.launch import TritonServer
from brisk_client.inference import InferenceClient, Transport
from support.pipeline_entries import describe_fork, write
from support.server.running import StartServer

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def server(start_shared: StartServer, tmp_path_factory: pytest.TempPathFactory) -> TritonServer:
    repository = tmp_path_factory.mktemp("pipelines")
    for name, changes in (("fork", {}), ("wrong", {"policy": "proportoinal"})):
        version = repository / name / "1"
        write(version, describe_fork(version, **changes))
        (version.parent / "config.pbtxt").write_text('backend: "brisk"')
    options = ("--model-control-mode=explicit", "--load-model=fork")
    return start_shared(repository, options)


@pytest.mark.parametrize("transport", list(Transport))
def test_a_pipeline_answers_like_any_model(server: TritonServer, transport: Transport) -> None:
    endpoints = server.endpoints
    url = endpoints.grpc if transport is Transport.GRPC else endpoints.http
    x = np.random.default_rng(0).random((3, 4), np.float32)
    with InferenceClient(url, transport) as client:
        np.testing.assert_allclose(client.infer("fork", {"x": x})["y"], 4 * x, rtol=1e-5)


def test_its_configuration_is_completed_from_its_networks(server: TritonServer) -> None:
    with http.InferenceServerClient(server.endpoints.http) as client:
        config = client.get_model_config("fork")
    assert [(each["name"], each["dims"]) for each in config["input"]] == [("x", [4])]
    assert [(each["name"], each["dims"]) for each in config["output"]] == [("y", [4])]
    assert config["max_batch_size"] == 4


def test_the_standard_time_out_is_its_objective(server: TritonServer) -> None:
    x = http.InferInput("x", [1, 4], "FP32")
    x.set_data_from_numpy(np.ones((1, 4), np.float32))
    with http.InferenceServerClient(server.endpoints.http) as client:
        answer = client.infer("fork", [x], timeout=20_000_000)
        np.testing.assert_allclose(answer.as_numpy("y"), 4)
        with pytest.raises(InferenceServerException, match="time-out ran out"):
            client.infer("fork", [x], timeout=1)


def test_a_wrong_pipeline_refuses_its_load_and_says_why(server: TritonServer) -> None:
    with (
        http.InferenceServerClient(server.endpoints.http) as client,
        pytest.raises(InferenceServerException, match="did you mean 'proportional'"),
    ):
        client.load_model("wrong")
