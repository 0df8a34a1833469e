"""A client that waits for a server to come up and asks it once, over HTTP or gRPC.

It tries to connect every millisecond, asks whether the model is ready as often, and sends the
request that it has written down before. The same for every side.
"""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from tritonclient import grpc, utils
from tritonclient import http as triton_http
from tritonclient.utils import InferenceServerException

from brisk_client.inference import InferenceClient, Transport

POLL_S = 0.001

_CALL_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Reached:
    """When the model was ready and when the answer had come, by ``time.perf_counter``."""

    ready_s: float
    answered_s: float
    outputs: Mapping[str, np.ndarray]


def first_answer(
    url: str,
    transport: Transport,
    model: str,
    inputs: Mapping[str, np.ndarray],
    give_up: Callable[[], None],
) -> Reached:
    """Wait, ask, and take the answer. ``give_up`` is called while waiting; it raises where there
    is nothing to wait for any more. Raises InferenceServerException where the answer is an error.
    """
    ask = _ask_http if transport is Transport.HTTP else _ask_grpc
    return ask(url, model, inputs, give_up)


def _ask_http(
    url: str, model: str, inputs: Mapping[str, np.ndarray], give_up: Callable[[], None]
) -> Reached:
    described = []
    for name, array in inputs.items():
        kind = utils.np_to_triton_dtype(array.dtype)
        described.append(triton_http.InferInput(name, list(array.shape), kind))
        described[-1].set_data_from_numpy(array)
    client = triton_http.InferenceServerClient
    body, header_size = client.generate_request_body(described)
    headers = {"Content-Type": "application/octet-stream"}
    if header_size is not None:
        headers["Inference-Header-Content-Length"] = str(header_size)
    _wait_for_port(url, give_up)
    connection = http.client.HTTPConnection(url, timeout=_CALL_TIMEOUT_S)
    try:
        while True:
            connection.request("GET", f"/v2/models/{model}/ready")
            answer = connection.getresponse()
            answer.read()
            if answer.status == 200:
                break
            give_up()
            time.sleep(POLL_S)
        ready_s = time.perf_counter()
        connection.request("POST", f"/v2/models/{model}/infer", body, headers)
        answer = connection.getresponse()
        content = answer.read()
        answered_s = time.perf_counter()
    finally:
        connection.close()
    if answer.status != 200:
        raise InferenceServerException(content.decode(errors="replace"), str(answer.status))
    size = answer.getheader("Inference-Header-Content-Length")
    result = client.parse_response_body(content, header_length=None if size is None else int(size))
    names = [output["name"] for output in result.get_response()["outputs"]]
    return Reached(ready_s, answered_s, {name: result.as_numpy(name) for name in names})


def _ask_grpc(
    url: str, model: str, inputs: Mapping[str, np.ndarray], give_up: Callable[[], None]
) -> Reached:
    _wait_for_port(url, give_up)  # a channel waits a second before it tries again
    with InferenceClient(url, Transport.GRPC, _CALL_TIMEOUT_S) as client:
        control = grpc.InferenceServerClient(url)
        try:
            while not control.is_model_ready(model):
                give_up()
                time.sleep(POLL_S)
        finally:
            control.close()
        ready_s = time.perf_counter()
        outputs = client.infer(model, inputs)
        return Reached(ready_s, time.perf_counter(), outputs)


def _wait_for_port(url: str, give_up: Callable[[], None]) -> None:
    host, _, port = url.rpartition(":")
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=_CALL_TIMEOUT_S).close()
        except ConnectionRefusedError:
            give_up()
            time.sleep(POLL_S)
        else:
            return
