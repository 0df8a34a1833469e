"""Features of Triton around a model: ensembles, warm-up, shared-memory clients."""

from __future__ import annotations

import numpy as np
import pytest
from tritonclient import http
from tritonclient.utils import shared_memory

from brisk.triton.launch import TritonServer
from brisk_client.inference import InferenceClient, Transport
from support.server.entries import doubled, write_entry
from support.server.running import StartServer

pytestmark = pytest.mark.server

ENSEMBLE = """
platform: "ensemble"
max_batch_size: 4
input [ { name: "in" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "out" data_type: TYPE_FP32 dims: [ 4 ] } ]
ensemble_scheduling {
  step [
    { model_name: "doubled" model_version: -1
      input_map { key: "x" value: "in" } output_map { key: "y" value: "twice" } },
    { model_name: "warmed" model_version: -1
      input_map { key: "x" value: "twice" } output_map { key: "y" value: "out" } }
  ]
}
"""
WARMED = """
backend: "brisk"
max_batch_size: 4
model_warmup [ { name: "zeros" batch_size: 1
  inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } } } ]
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""


@pytest.fixture(scope="module")
def server(start_shared: StartServer, tmp_path_factory: pytest.TempPathFactory) -> TritonServer:
    repository = tmp_path_factory.mktemp("features")
    write_entry(repository, "doubled", doubled(), 'backend: "brisk" max_batch_size: 4')
    write_entry(repository, "warmed", doubled(), WARMED)
    (repository / "both" / "1").mkdir(parents=True)
    (repository / "both" / "config.pbtxt").write_text(ENSEMBLE)
    return start_shared(repository)


@pytest.mark.parametrize("transport", list(Transport))
def test_an_ensemble_chains_two_entries(server: TritonServer, transport: Transport) -> None:
    ends = server.endpoints
    with InferenceClient(ends.http if transport is Transport.HTTP else ends.grpc, transport) as c:
        x = np.arange(8, dtype=np.float32).reshape(2, 4)
        np.testing.assert_array_equal(c.infer("both", {"in": x})["out"], 4 * x)


def test_a_client_may_pass_tensors_by_shared_memory(server: TritonServer) -> None:
    x = np.arange(4, dtype=np.float32).reshape(1, 4)
    client = http.InferenceServerClient(server.endpoints.http)
    given = shared_memory.create_shared_memory_region("given", "/brisk_test_given", x.nbytes)
    taken = shared_memory.create_shared_memory_region("taken", "/brisk_test_taken", x.nbytes)
    try:
        shared_memory.set_shared_memory_region(given, [x])
        client.register_system_shared_memory("given", "/brisk_test_given", x.nbytes)
        client.register_system_shared_memory("taken", "/brisk_test_taken", x.nbytes)
        described = http.InferInput("x", [1, 4], "FP32")
        described.set_shared_memory("given", x.nbytes)
        wanted = http.InferRequestedOutput("y", binary_data=True)
        wanted.set_shared_memory("taken", x.nbytes)
        client.infer("doubled", [described], outputs=[wanted])
        answer = shared_memory.get_contents_as_numpy(taken, np.float32, [1, 4])
        np.testing.assert_array_equal(answer, 2 * x)
    finally:
        client.unregister_system_shared_memory()
        client.close()
        shared_memory.destroy_shared_memory_region(given)
        shared_memory.destroy_shared_memory_region(taken)
