"""Entries with states and controls, clients of sequences, and ONNX Runtime fed by hand."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from tritonclient import grpc, http, utils

from brisk.triton.launch import TritonServer
from brisk_client.inference import Transport
from support.server.entries import make_model

CorrelationId = int | str

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def accumulator(shape: tuple[int | str, ...] = ("batch", 2), element: int = FLOAT) -> Any:
    """Return ``y = next = x + sum``."""
    return make_model(
        [
            helper.make_node("Add", ["x", "sum"], ["y"]),
            helper.make_node("Identity", ["y"], ["next"]),
        ],
        [("x", element, shape), ("sum", element, shape)],
        [("y", element, shape), ("next", element, shape)],
    )


def recurrent(width: int = 8) -> onnx.ModelProto:
    """Return ``h' = tanh(x W + h U)``, ``c' = c / 2 + h'``, ``y = c' V``: two states, rounded
    sums."""
    random = np.random.default_rng(1)
    weights = [
        (name, random.standard_normal((width, width)).astype(np.float32) / width)
        for name in ("W", "U", "V")
    ]
    node = helper.make_node
    shape = ("batch", width)
    return make_model(
        [
            node("MatMul", ["x", "W"], ["xw"]),
            node("MatMul", ["h", "U"], ["hu"]),
            node("Add", ["xw", "hu"], ["sum"]),
            node("Tanh", ["sum"], ["h_next"]),
            node("Mul", ["c", "half"], ["c_half"]),
            node("Add", ["c_half", "h_next"], ["c_next"]),
            node("MatMul", ["c_next", "V"], ["y"]),
        ],
        [(name, FLOAT, shape) for name in ("x", "h", "c")],
        [(name, FLOAT, shape) for name in ("y", "h_next", "c_next")],
        [*weights, ("half", np.array(0.5, np.float32))],
    )


def growing() -> onnx.ModelProto:
    """Return ``after = concat(before, x)`` along the second axis, ``y`` the sum of all so far."""
    return make_model(
        [
            helper.make_node("Unsqueeze", ["x", "axes"], ["row"]),
            helper.make_node("Concat", ["before", "row"], ["after"], axis=1),
            helper.make_node("ReduceSum", ["after", "axes"], ["y"], keepdims=0),
        ],
        [("x", FLOAT, ("batch", 2)), ("before", FLOAT, ("batch", "past", 2))],
        [("y", FLOAT, ("batch", 2)), ("after", FLOAT, ("batch", "now", 2))],
        [("axes", np.array([1], np.int64))],
    )


def controlled() -> onnx.ModelProto:
    """Return ``y = x``, and the controls as outputs ``first``, ``ready``, ``last`` and
    ``whose``."""
    kinds = {
        "START": (FLOAT, "first"),
        "READY": (TensorProto.INT32, "ready"),
        "END": (TensorProto.BOOL, "last"),
        "CORRID": (TensorProto.UINT64, "whose"),
    }
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    nodes += [
        helper.make_node("Identity", [name], [output]) for name, (_, output) in kinds.items()
    ]
    return make_model(
        nodes,
        [
            ("x", FLOAT, ("batch", 1)),
            *((name, kind, ("batch", 1)) for name, (kind, _) in kinds.items()),
        ],
        [
            ("y", FLOAT, ("batch", 1)),
            *((output, kind, ("batch", 1)) for kind, output in kinds.values()),
        ],
    )


def tensor(name: str, kind: str, dims: str) -> str:
    return f'{{ name: "{name}" data_type: TYPE_{kind} dims: [ {dims} ] }}'


def state(read: str, written: str, kind: str, dims: str, first: str = "") -> str:
    """Return the configuration of a state.

    ``first``: the fields of ``initial_state`` behind its name and type; empty: there is none.
    """
    initial = f'initial_state {{ name: "first" data_type: TYPE_{kind} {first} }}' if first else ""
    return (
        f'state {{ input_name: "{read}" output_name: "{written}" data_type: TYPE_{kind} '
        f"dims: [ {dims} ] {initial} }}"
    )


def oldest(*parts: str) -> str:
    return _batching("oldest { max_candidate_sequences: 16 }", parts)


def direct(*parts: str) -> str:
    return _batching("direct { }", parts)


def _batching(strategy: str, parts: Sequence[str]) -> str:
    idle = "max_sequence_idle_microseconds: 20000000"
    return f"sequence_batching {{ {strategy} {idle} {' '.join(parts)} }}\n"


class ByHand:
    """ONNX Runtime with its states handed on from run to run by the caller."""

    def __init__(
        self, model: onnx.ModelProto, states: Mapping[str, tuple[str, np.ndarray]]
    ) -> None:
        """``states``: by input, the output that is handed on to it, and the first value."""
        self._session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        self._names = [output.name for output in self._session.get_outputs()]
        self._states = states

    def answers(self, sequence: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return ``y`` for each ``x``."""
        present = {name: first for name, (_, first) in self._states.items()}
        answers = []
        for x in sequence:
            outputs = dict(
                zip(self._names, self._session.run(None, {"x": x, **present}), strict=True)
            )
            present = {name: outputs[output] for name, (output, _) in self._states.items()}
            answers.append(outputs["y"])
        return answers


class SequenceClient:
    """A connection for one thread."""

    def __init__(self, server: TritonServer, transport: Transport) -> None:
        self._module: Any = http if transport is Transport.HTTP else grpc
        ends = server.endpoints
        url = ends.http if transport is Transport.HTTP else ends.grpc
        self._client = self._module.InferenceServerClient(url)

    def step(
        self,
        model: str,
        correlation_id: CorrelationId,
        x: np.ndarray,
        start: bool = False,
        end: bool = False,
        outputs: Sequence[str] = (),
        **options: Any,
    ) -> dict[str, np.ndarray]:
        """Return all outputs unless some are named; raises tritonclient's exception."""
        result = self._client.infer(
            model,
            [describe(self._module, x)],
            outputs=[self._module.InferRequestedOutput(name) for name in outputs] or None,
            sequence_id=correlation_id,
            sequence_start=start,
            sequence_end=end,
            **options,
        )
        response = result.get_response()
        named = response.get("outputs", ()) if isinstance(response, dict) else response.outputs
        names = [output["name"] if isinstance(output, dict) else output.name for output in named]
        return {name: result.as_numpy(name) for name in names}

    def whole(
        self, model: str, correlation_id: CorrelationId, sequence: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """Return ``y`` for each ``x``, from START to END."""
        last = len(sequence) - 1
        return [
            self.step(model, correlation_id, x, index == 0, index == last)["y"]
            for index, x in enumerate(sequence)
        ]

    def close(self) -> None:
        self._client.close()

    def __enter__(self) -> SequenceClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def describe(module: Any, x: np.ndarray) -> Any:
    tensor = module.InferInput("x", list(x.shape), utils.np_to_triton_dtype(x.dtype))
    tensor.set_data_from_numpy(x)
    return tensor


def stream(
    server: TritonServer, model: str, sequences: Mapping[CorrelationId, Sequence[np.ndarray]]
) -> dict[CorrelationId, list[np.ndarray]]:
    """Send all steps of all ``sequences`` on one gRPC stream, in turns, none of them awaited;
    return the answers."""
    answers: dict[str, np.ndarray] = {}
    errors: list[Exception] = []
    there = threading.Event()
    total = sum(len(steps) for steps in sequences.values())

    def take(result: Any, error: Exception | None) -> None:
        if error is not None:
            errors.append(error)
        else:
            answers[result.get_response().id] = result.as_numpy("y")
        if len(answers) + len(errors) == total:
            there.set()

    with grpc.InferenceServerClient(server.endpoints.grpc) as client:
        client.start_stream(take)
        for index in range(max(map(len, sequences.values()))):
            for key, steps in sequences.items():
                if index < len(steps):
                    client.async_stream_infer(
                        model,
                        [describe(grpc, steps[index])],
                        request_id=f"{key} {index}",
                        sequence_id=key,
                        sequence_start=index == 0,
                        sequence_end=index == len(steps) - 1,
                    )
        assert there.wait(60), f"{len(answers)} of {total} answers, errors {errors}"
        client.stop_stream()
    assert errors == []
    return {
        key: [answers[f"{key} {index}"] for index in range(len(steps))]
        for key, steps in sequences.items()
    }
