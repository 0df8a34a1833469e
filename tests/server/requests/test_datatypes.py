"""Every Triton datatype, both ways, through a real server; empty tensors too."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from brisk.triton.launch import TritonServer
from brisk_client.inference import InferenceClient, Transport
from support.server.entries import identity, write_entry
from support.server.running import StartServer

pytestmark = pytest.mark.server

ELEMENTS = {
    "bool": TensorProto.BOOL,
    "uint8": TensorProto.UINT8,
    "uint16": TensorProto.UINT16,
    "uint32": TensorProto.UINT32,
    "uint64": TensorProto.UINT64,
    "int8": TensorProto.INT8,
    "int16": TensorProto.INT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "float16": TensorProto.FLOAT16,
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "bfloat16": TensorProto.BFLOAT16,
    "string": TensorProto.STRING,
}


@pytest.fixture(scope="module")
def server(start_shared: StartServer, tmp_path_factory: pytest.TempPathFactory) -> TritonServer:
    repository = tmp_path_factory.mktemp("datatypes")
    for name, element in ELEMENTS.items():
        write_entry(repository, f"identity_{name}", identity(element))
    return start_shared(repository)


@pytest.fixture(scope="module", params=list(Transport))
def client(server: TritonServer, request: pytest.FixtureRequest) -> Iterator[InferenceClient]:
    ends = server.endpoints
    url = ends.http if request.param is Transport.HTTP else ends.grpc
    with InferenceClient(url, request.param) as opened:
        yield opened


def sample(name: str, shape: tuple[int, ...]) -> np.ndarray:
    numbers = np.arange(np.prod(shape)).reshape(shape)
    if name == "string":
        texts = [f"ä{number}\0".encode() for number in numbers.reshape(-1)]
        return np.array(texts, object).reshape(shape)
    dtype = ml_dtypes.bfloat16 if name == "bfloat16" else np.dtype(name)
    return (numbers % 2 if name == "bool" else numbers).astype(dtype)


@pytest.mark.parametrize("name", ELEMENTS)
@pytest.mark.parametrize("shape", [(1, 3), (4, 250), (2, 0)], ids=str)
def test_a_tensor_of_every_datatype_comes_back_as_it_went(
    client: InferenceClient, name: str, shape: tuple[int, ...]
) -> None:
    sent = sample(name, shape)
    received = client.infer(f"identity_{name}", {"x": sent})["y"]
    assert received.shape == shape
    np.testing.assert_array_equal(received.astype(sent.dtype), sent)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_no_numbers_pass_through(client: InferenceClient, value: float) -> None:
    sent = np.array([[1.0, value, 3.0]], np.float32)
    np.testing.assert_array_equal(client.infer("identity_float32", {"x": sent})["y"], sent)
