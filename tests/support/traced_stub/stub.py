"""A process that runs ``model.py`` as Triton's stub does, with what it needs of ``pb_utils``.

Arguments: the entry's folder and the name of its input. It says ``loaded``, waits for a line, asks
``WARM`` times, then ``TRACED`` times with the number of the request in the file
``$TEST_TRACE_SWITCH``, and says ``done`` and how many answers came by ``execute`` itself.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import time
from types import ModuleType
from typing import Any

import numpy as np

WARM, TRACED = 40, 5
PATIENCE_S = 60.0
PAUSE_S = 0.02
"""The pause between two requests; the worker reads the Release of the first one meanwhile."""


class Logger:
    @staticmethod
    def log_info(text: str) -> None:
        print(text, file=sys.stderr)

    log_warn = log_error = log_info


class Tensor:
    def __init__(self, name: str, array: np.ndarray) -> None:
        self._values = name, array

    def name(self) -> str:
        return self._values[0]

    def as_numpy(self) -> np.ndarray:
        return self._values[1]


class InferenceResponse:
    def __init__(self, output_tensors: list[Tensor], error: Exception | None = None) -> None:
        if error is not None:
            raise error
        self.output_tensors = output_tensors


class TritonModelException(Exception):
    """Why a model cannot be loaded."""


class Request:
    """A request of Triton's, which is its own response sender."""

    def __init__(self, name: str, array: np.ndarray) -> None:
        self._inputs = [Tensor(name, array)]
        self.sent: queue.SimpleQueue[InferenceResponse] = queue.SimpleQueue()

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def requested_output_names(self) -> list[str]:
        return ["y"]

    def parameters(self) -> str:
        return "{}"

    def timeout(self) -> int:
        return 0

    def is_cancelled(self) -> bool:
        return False

    def get_response_sender(self) -> Request:
        return self

    def send(self, response: InferenceResponse, flags: int) -> None:
        self.sent.put(response)


def pb_utils() -> ModuleType:
    module: Any = ModuleType("triton_python_backend_utils")
    for kind in (Logger, Tensor, InferenceResponse, TritonModelException):
        setattr(module, kind.__name__, kind)
    return module


def ask(model: Any, name: str, array: np.ndarray) -> bool:
    """Send one request; return whether ``execute`` has waited for the answer."""
    request = Request(name, array)
    answers = model.execute([request])
    (answer,) = answers or [request.sent.get(timeout=PATIENCE_S)]
    np.testing.assert_array_equal(answer.output_tensors[0].as_numpy(), -array)
    time.sleep(PAUSE_S)
    return answers is not None


def main(entry: str, name: str) -> None:
    sys.modules["triton_python_backend_utils"] = pb_utils()
    from model import TritonPythonModel

    tensor = {"data_type": "TYPE_FP32", "dims": [-1, 4]}
    config = {"input": [{"name": name, **tensor}], "output": [{"name": "y", **tensor}]}
    model = TritonPythonModel()
    model.initialize(
        {
            "model_name": "quick",
            "model_version": "1",
            "model_repository": entry,
            "model_config": json.dumps(config),
            "model_instance_kind": "CPU",
        }
    )
    print("loaded", flush=True)
    sys.stdin.readline()
    array = np.ones((2, 4), np.float32)
    for _ in range(WARM):
        ask(model, name, array)
    waited = 0
    with open(os.environ["TEST_TRACE_SWITCH"], "r+b", buffering=0) as switch:
        for number in range(1, TRACED + 1):
            os.pwrite(switch.fileno(), bytes([number]), 0)
            waited += ask(model, name, array)
            os.pwrite(switch.fileno(), b"\0", 0)
            time.sleep(PAUSE_S)
    print("done", waited, flush=True)
    model.finalize()


if __name__ == "__main__":
    main(*sys.argv[1:])
