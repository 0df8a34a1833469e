"""A client of a Triton server that sends and receives numpy arrays, over HTTP or gRPC."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from enum import Enum
from http.client import HTTPConnection, HTTPException
from types import MappingProxyType
from typing import Any

import numpy as np
from tritonclient import grpc, http, utils

Parameters = Mapping[str, "str | int | bool"]

EXAMPLE_SIZE = 64
EXAMPLE_TEXT = "1"
"""A string that models which read numbers out of strings take, too."""


class Transport(str, Enum):
    """The protocol of a connection."""

    HTTP = "HTTP"
    GRPC = "gRPC"


def transport_of(url: str, timeout_s: float = 10.0) -> Transport:
    """Return the protocol of the server at ``HOST:PORT``: HTTP if it answers an HTTP request, else
    gRPC.

    Raises OSError if nothing listens there, ValueError if ``url`` is no address.
    """
    host, separator, port = url.rpartition(":")
    is_port = port.isdecimal() and len(port) <= 5 and 0 < int(port) < 65536
    if not separator or not is_port:  # the resolver takes greater ones, and means others
        raise ValueError("expected HOST:PORT")
    connection = HTTPConnection(host.strip("[]"), int(port), timeout=timeout_s)
    with contextlib.closing(connection):
        connection.connect()
        try:
            connection.request("GET", "/v2/health/live")
            connection.getresponse()
        except (HTTPException, ConnectionError):
            return Transport.GRPC
    return Transport.HTTP


class InferenceClient:
    """A connection to one server; use as a context manager. Not for use by several threads.

    Errors are tritonclient's own ``InferenceServerException``.
    """

    def __init__(self, url: str, transport: Transport, timeout_s: float = 60.0) -> None:
        self.transport = transport
        self._timeout_s = timeout_s
        self._module: Any = http if transport is Transport.HTTP else grpc
        self._client: Any = (
            http.InferenceServerClient(
                url, connection_timeout=timeout_s, network_timeout=timeout_s
            )
            if transport is Transport.HTTP
            else grpc.InferenceServerClient(url)
        )

    def infer(
        self,
        model: str,
        inputs: Mapping[str, np.ndarray],
        *,
        version: int | None = None,
        outputs: Sequence[str] | None = None,
        parameters: Parameters | None = None,
    ) -> dict[str, np.ndarray]:
        """Send a request and return its outputs by name.

        ``version``: the newest by default. ``outputs``: the names of those wanted, by default all.
        ``parameters`` are sent with the request, for example ``{"brisk_class": "realtime"}``.
        """
        timeout = {} if self.transport is Transport.HTTP else {"client_timeout": self._timeout_s}
        result = self._client.infer(
            model,
            [self._input(name, array) for name, array in inputs.items()],
            model_version="" if version is None else str(version),
            outputs=[self._module.InferRequestedOutput(name) for name in outputs or ()] or None,
            parameters=dict(parameters) if parameters else None,
            **timeout,
        )
        return {name: result.as_numpy(name) for name in self._output_names(result)}

    def load(self, model: str) -> None:
        """Load a model on a server with ``--model-control-mode explicit``; return once it is
        READY."""
        self._client.load_model(model)

    def inputs(self, model: str) -> list[dict[str, Any]]:
        """Return ``name``, ``datatype`` and ``shape`` of each input, as the server has them."""
        if self.transport is Transport.HTTP:
            metadata = self._client.get_model_metadata(model)
        else:
            metadata = self._client.get_model_metadata(model, as_json=True)
        return list(metadata["inputs"])

    def example_inputs(
        self,
        model: str,
        shapes: Mapping[str, Sequence[int]] = MappingProxyType({}),
        given: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> dict[str, np.ndarray]:
        """Return an array for each input of ``model``: the ``given`` one, else a synthetic one.

        A synthetic array has the shape in ``shapes``, else the model's, where an open size is 1 in
        the first place and EXAMPLE_SIZE in others. Strings are EXAMPLE_TEXT. Raises ValueError for
        an input of a type that numpy does not have, and for a name that is none of the inputs.
        """
        wanted = self.inputs(model)
        names = [described["name"] for described in wanted]
        if unknown := sorted({*shapes, *given} - set(names)):
            raise ValueError(f"'{model}' has no input '{unknown[0]}'; it has: {', '.join(names)}")
        random = np.random.default_rng(0)
        inputs = {}
        for described in wanted:
            if described["name"] in given:
                inputs[described["name"]] = given[described["name"]]
                continue
            sizes = [int(size) for size in described["shape"]]
            shape = shapes.get(described["name"]) or [
                size if size > 0 else EXAMPLE_SIZE if position else 1
                for position, size in enumerate(sizes)
            ]
            if described["datatype"] == "BYTES":
                inputs[described["name"]] = np.full(shape, EXAMPLE_TEXT, object)
                continue
            dtype = utils.triton_to_np_dtype(described["datatype"])
            if dtype is None or np.dtype(dtype).kind not in "biuf":
                raise ValueError(
                    f"input '{described['name']}' is of {described['datatype']}, which is not "
                    "made up: give it with a file of arrays"
                )
            inputs[described["name"]] = (
                random.standard_normal(shape).astype(dtype)
                if np.dtype(dtype).kind == "f"
                else np.ones(shape, dtype)
            )
        return inputs

    def _input(self, name: str, array: np.ndarray) -> Any:
        """Return the request's input for an array: BF16 for bfloat16 (ml_dtypes), else the
        datatype of its numpy type."""
        if array.dtype.kind == "U":
            array = array.astype(object)  # as tritonclient wants strings
        is_bfloat16 = array.dtype.name == "bfloat16"
        datatype = "BF16" if is_bfloat16 else utils.np_to_triton_dtype(array.dtype)
        described = self._module.InferInput(name, list(array.shape), datatype)
        described.set_data_from_numpy(array)
        return described

    def _output_names(self, result: Any) -> list[str]:
        response = result.get_response()
        if self.transport is Transport.HTTP:
            return [output["name"] for output in response.get("outputs", ())]
        return [output.name for output in response.outputs]

    def close(self) -> None:
        """Close the connection; an open one keeps a stopping server waiting."""
        self._client.close()

    def __enter__(self) -> InferenceClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
