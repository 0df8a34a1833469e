"""Clients that take more than their share; each in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import numpy as np
from tritonclient import grpc

from brisk_bench.samples.expectations import ExpectedAnswer, mismatch

EACH = 512
"""Requests in flight to each flooded model."""

FLOOD_PATIENCE_S = 300.0
"""The longest wait for all answers: a client that fills ten queues gets little capacity next to
clients that ask without pause."""

ENDLESS_ROUNDS = 2.0**62
_PATIENCE_S = 60.0


def flood(
    parent: Connection, url: str, models: Sequence[str], expectation: ExpectedAnswer
) -> None:
    """Send, as the child, EACH requests to each of ``models`` at once.

    Reports how many were answered, how many refused, and the other errors and wrong answers.
    """
    came: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
    inputs = described(expectation.inputs)
    answered, refused = 0, 0
    faults: list[str] = []
    with grpc.InferenceServerClient(url) as client:
        for _ in range(EACH):
            for model in models:
                client.async_infer(model, inputs, lambda result, error: came.put((result, error)))
        for _ in range(EACH * len(models)):
            result, error = came.get(timeout=_PATIENCE_S)
            if error is None:
                answered += 1
                outputs = {name: result.as_numpy(name) for name in expectation.outputs}
                if problem := mismatch(outputs, expectation.outputs):
                    faults.append(f"wrong: a flooded model: {problem}")
            elif "wait already" in str(error) or "took its place" in str(error):
                refused += 1
            else:
                faults.append(str(error))
    parent.send((answered, refused, faults))


def run_for_ever(parent: Connection, url: str, model: str, seconds: float) -> None:
    """Send, as the child, a request that ``model`` computes for ever, and report that it is sent.

    Cancels it after ``seconds``, or at a message; then reports what became of it.
    """
    came: SimpleQueue[Any] = SimpleQueue()
    with grpc.InferenceServerClient(url) as client:
        call = client.async_infer(
            model,
            described({"x": np.array([ENDLESS_ROUNDS], np.float32)}),
            lambda result, error: came.put(error),
        )
        time.sleep(0.2)
        parent.send("begun" if came.empty() else f"it has ended: {came.get()}")
        parent.poll(seconds)
        call.cancel()
        parent.send(str(came.get(timeout=_PATIENCE_S)))


def described(inputs: Mapping[str, np.ndarray]) -> list[grpc.InferInput]:
    """Return float32 arrays by name, as the gRPC client wants them."""
    tensors = []
    for name, array in inputs.items():
        tensor = grpc.InferInput(name, list(array.shape), "FP32")
        tensor.set_data_from_numpy(array)
        tensors.append(tensor)
    return tensors
