"""Makes a task's request as bytes, which are then sent as often as wanted."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import serialize_byte_tensor, triton_to_np_dtype

from brisk_client.urgency import CLASS_PARAMETER, deadline_us
from brisk_client.workload.description import Periodic, Task, Workload, WorkloadFailedError

INFER = "/inference.GRPCInferenceService/ModelInfer"

UNLIMITED = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
"""Channel options: messages of any size, and a quick reconnection to a server that comes back."""

LENGTH = 128
"""Sizes that a model leaves open and the task does not give, of tensors of rank 1 and 2."""

SIDE = 224
"""Sizes that a model leaves open and the task does not give, of tensors of higher rank."""

ANSWER_TIMEOUT_S = 120.0
_METADATA_TIMEOUT_S = 30.0
_ALONE_REQUESTS = 5


def request_sender(channel: grpc.Channel, task: Task, seed: int = 0) -> Callable[[], None]:
    """Return a function that sends the task's request, serialised once, and waits for its answer.

    Both raise grpc.RpcError; this also raises ValueError as ``make_request`` does.
    """
    request = make_request(task, model_metadata(channel, task), seed)
    infer = channel.unary_unary(INFER)

    def send() -> None:
        infer(request, timeout=ANSWER_TIMEOUT_S)

    return send


def model_metadata(channel: grpc.Channel, task: Task) -> Any:
    """Return the server's ModelMetadataResponse for the task's model. Raises grpc.RpcError."""
    request = service_pb2.ModelMetadataRequest(name=task.model, version=task.version)
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    return stub.ModelMetadata(request, timeout=_METADATA_TIMEOUT_S)


def make_request(task: Task, metadata: Any, seed: int) -> bytes:
    """Return a serialised ModelInferRequest with inputs made from ``seed``.

    Raises ValueError if ``sizes`` name an unknown input, or do not fit the model.
    """
    request = service_pb2.ModelInferRequest(model_name=task.model, model_version=task.version)
    if task.job_class is not None:
        request.parameters[CLASS_PARAMETER].string_param = task.job_class
    if task.deadline_s is not None:
        request.parameters["timeout"].int64_param = deadline_us(task.deadline_s)
    random = np.random.default_rng(seed)
    known = [described.name for described in metadata.inputs]
    for name in task.sizes:
        if name not in known:
            raise ValueError(
                f"task '{task.name}': sizes: model '{task.model}' has no input '{name}', "
                f"only {', '.join(known)}"
            )
    for described in metadata.inputs:
        shape = input_shape(task, described.name, list(described.shape))
        tensor = request.inputs.add()
        tensor.name, tensor.datatype = described.name, described.datatype
        tensor.shape.extend(shape)
        request.raw_input_contents.append(_content(described, shape, random))
    return request.SerializeToString()


def input_shape(task: Task, name: str, declared: list[int]) -> list[int]:
    """Return ``declared`` with its open sizes (-1) filled; an open first one is the batch.

    Raises ValueError if the task's sizes do not fit.
    """
    shape = list(declared)
    has_batch = shape[:1] == [-1]
    if has_batch:
        shape[0] = task.batch_size
    elif task.batch_size != 1:
        raise ValueError(
            f"task '{task.name}': batch_size {task.batch_size}, but input '{name}' of model "
            f"'{task.model}' has shape {declared}, without a batch"
        )
    given = task.sizes.get(name)
    if given is None:
        usual = LENGTH if len(shape) < 4 else SIDE
        return [usual if size == -1 else size for size in shape]
    inner = declared[1:] if has_batch else declared
    if len(given) != len(inner) or any(
        size not in (-1, wanted) for size, wanted in zip(inner, given, strict=True)
    ):
        raise ValueError(
            f"task '{task.name}': sizes {list(given)} do not fit input '{name}' of model "
            f"'{task.model}', which is {inner}"
        )
    return [*shape[: len(shape) - len(given)], *given]


def _content(described: Any, shape: list[int], random: np.random.Generator) -> bytes:
    datatype = described.datatype
    if datatype == "BYTES":
        values = np.full(shape, b"brisk", dtype=np.object_)
        return bytes(serialize_byte_tensor(values).item())
    if datatype == "BF16":
        return bytes(2 * int(np.prod(shape)))
    dtype = np.dtype(triton_to_np_dtype(datatype))
    if dtype.kind == "f":
        return random.standard_normal(shape).astype(dtype).tobytes()
    if "mask" in described.name:
        return np.ones(shape, dtype).tobytes()
    return random.integers(0, 2, shape).astype(dtype).tobytes()


# Before a run: every model answers, and periodic tasks know their phases.


def warm_up(workload: Workload, url: str, requests: int) -> Workload:
    """Send some requests to every task's model, one after the other; return the workload with all
    phases fixed.

    Raises WorkloadFailedError that names the task whose model does not answer.
    """
    timed = needs_coordination(workload)
    alone_s: dict[str, float] = {}
    with grpc.insecure_channel(url, options=UNLIMITED) as channel:
        for task in workload.tasks:
            count = requests + (_ALONE_REQUESTS if task.name in timed else 0)
            times_s = []
            try:
                # Without deadline: the first requests of a model may well be late.
                send = request_sender(
                    channel, dataclasses.replace(task, deadline_s=None), workload.seed
                )
                for _ in range(count):
                    before_s = time.monotonic()
                    send()
                    times_s.append(time.monotonic() - before_s)
            except grpc.RpcError as error:
                raise WorkloadFailedError(
                    f"task '{task.name}': model '{task.model}' at {url}: {error.details()}"
                ) from None
            except ValueError as error:
                raise WorkloadFailedError(str(error)) from None
            if task.name in timed:
                alone_s[task.name] = statistics.median(times_s[requests:])
    return coordinate(workload, alone_s)


def needs_coordination(workload: Workload) -> set[str]:
    """Return the names of the tasks whose phase depends on stand-alone latencies."""
    same: dict[float, list[str]] = defaultdict(list)
    for task in workload.tasks:
        if isinstance(task.load, Periodic) and task.load.phase_s is None:
            same[task.load.frequency_hz].append(task.name)
    return {name for names in same.values() if len(names) > 1 for name in names}


def coordinate(workload: Workload, alone_s: Mapping[str, float]) -> Workload:
    """Return the workload with every phase fixed.

    A task starts when the earlier tasks of its frequency would be done if each ran alone: the rule
    of DISB's ``builtinLoadCoordinator``. ``alone_s``: stand-alone latency by task, for those of
    ``needs_coordination``.
    """
    begun_s: dict[float, float] = defaultdict(float)
    tasks = []
    for task in workload.tasks:
        if isinstance(task.load, Periodic) and task.load.phase_s is None:
            frequency_hz = task.load.frequency_hz
            phase_s = begun_s[frequency_hz]
            task = dataclasses.replace(task, load=dataclasses.replace(task.load, phase_s=phase_s))
            begun_s[frequency_hz] += alone_s.get(task.name, 0.0)
        tasks.append(task)
    return dataclasses.replace(workload, tasks=tuple(tasks))
