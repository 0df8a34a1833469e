"""The servers of `brisk bench throughput`: one for each side, with the same entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from tritonclient import http as triton_http
from tritonclient.grpc import service_pb2
from tritonclient.utils import np_to_triton_dtype

from brisk_bench.engines.case import Case
from brisk_bench.harness.peer_backends import ONNXRUNTIME
from brisk_bench.harness.served_entries import (
    ONNXRUNTIME_MODEL,
    ONNXRUNTIME_SPINNING_MODEL,
    parameter,
    place_model,
    write_config,
    write_python_model,
)

BRISK, PYTHON, JOINED, CPP = "Brisk", "Python, one by one", "Python, joined", "C++ backend"

MOST_ROWS = 64
"""``max_batch_size`` of every entry whose model takes any number of rows."""

JOINING = """

class TritonPythonModel(TritonPythonModel):
    def execute(self, requests):
        if len(requests) == 1:
            return super().execute(requests)
        asked = [
            {{tensor.name(): tensor.as_numpy() for tensor in request.inputs()}}
            for request in requests
        ]
        feeds = {{name: np.concatenate([one[name] for one in asked]) for name in {inputs}}}
        outputs = self.session.run(self.names, feeds)
        responses, begin = [], 0
        for one in asked:
            end = begin + len(one[{inputs}[0]])
            parts = [output[begin:end] for output in outputs]
            tensors = [pb_utils.Tensor(*pair) for pair in zip(self.names, parts)]
            responses.append(pb_utils.InferenceResponse(tensors))
            begin = end
        return responses
"""
"""What makes a model of ONNXRUNTIME_MODEL compute the requests of one call together."""


@dataclass(frozen=True, slots=True)
class PeerSetting:
    """Settings of a side's computing: threads of a session, and whether idle ones spin."""

    threads: int
    spins: bool

    def __str__(self) -> str:
        return f"{self.threads} thread{'s'[: self.threads != 1]}{', spinning' * self.spins}"


def settings_of(side: str, cores: int) -> Sequence[PeerSetting]:
    """Return the settings, of which the best one is measured. Brisk has only its own."""
    if side == BRISK:
        return (PeerSetting(cores, False),)
    if side == CPP:
        return (PeerSetting(1, True), PeerSetting(cores, True))
    return tuple(
        PeerSetting(threads, spins)
        for threads in dict.fromkeys((1, cores))
        for spins in (False, True)
        if threads > 1 or not spins  # one thread never waits for others
    )


def takes_rows(case: Case) -> bool:
    """Whether the model takes any number of rows, so that requests may be joined."""
    graph = onnx.load(case.file, load_external_data=False).graph
    described = [each for each in graph.input if each.name in case.inputs] + list(graph.output)
    shapes = [each.type.tensor_type.shape.dim for each in described]
    counts = {len(array) for array in case.inputs.values()}
    return len(counts) == 1 and all(shape and shape[0].dim_param for shape in shapes)


def write_entry(
    repository: Path, name: str, case: Case, side: str, setting: PeerSetting, *, batching: bool
) -> None:
    """Write an entry of a side.

    ``batching``: with ``dynamic_batching``; the model must take rows then.
    """
    backend = {BRISK: "brisk", CPP: ONNXRUNTIME}.get(side, "python")
    more = "dynamic_batching { }\n" if batching else ""
    if side == CPP:
        more += parameter("intra_op_thread_count", setting.threads)
    rows = MOST_ROWS if takes_rows(case) else 0
    folder = write_config(repository, name, case.signature, backend, more, rows=rows)
    if backend != "python":
        place_model(case.file, folder / "model.onnx")
        return
    source = ONNXRUNTIME_SPINNING_MODEL if setting.spins else ONNXRUNTIME_MODEL
    source += JOINING if side == JOINED else ""
    write_python_model(
        folder, case.signature, source, file=str(case.file), threads=setting.threads
    )


# Requests as bytes, made once.


def grpc_request(model: str, inputs: Mapping[str, np.ndarray]) -> bytes:
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, array in inputs.items():
        tensor = request.inputs.add()
        tensor.name, tensor.datatype = name, np_to_triton_dtype(array.dtype)
        tensor.shape.extend(array.shape)
        request.raw_input_contents.append(array.tobytes())
    return bytes(request.SerializeToString())


def http_request(model: str, inputs: Mapping[str, np.ndarray], outputs: Sequence[str]) -> bytes:
    tensors = []
    for name, array in inputs.items():
        tensor = triton_http.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array, binary_data=True)
        tensors.append(tensor)
    selection = [triton_http.InferRequestedOutput(name, binary_data=True) for name in outputs]
    body, header = triton_http.InferenceServerClient.generate_request_body(tensors, selection)
    lines = [
        f"POST /v2/models/{model}/infer HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/octet-stream",
        f"Inference-Header-Content-Length: {header}",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body
