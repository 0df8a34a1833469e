"""The records of the protocol: one named tuple per message, all fields typed.

A connection starts with ``Hello`` and ``Welcome``. Afterwards the frontend sends ``AttachSlab``,
``LoadModel``, ``Infer``, ``Cancel``, ``Release``, ``AskStatistics``, ``ForgetStatistics`` and
``AskStatus``; the worker sends ``AttachSlab``, ``ModelLoaded``, ``LoadFailed``, ``Result``,
``Failure``, ``Log``, ``StatisticsTold`` and ``Status``. Closing the connection gives back
everything it held.
"""

from typing import NamedTuple, TypeAlias

from brisk.protocol.inference import (
    Cancel,
    Infer,
    InferForm,
    Region,
    Release,
    Result,
    ResultForm,
    SequenceStep,
    TensorForm,
)
from brisk.protocol.introspection import (
    AskStatistics,
    AskStatus,
    AskTrace,
    BeginTrace,
    ExitStatus,
    ForgetStatistics,
    Incident,
    ModelStatus,
    RunStatus,
    SampleRecord,
    SpanRecord,
    StatisticsTold,
    Status,
    TraceTold,
)
from brisk.tuning import SessionTuning

__all__ = [
    "PROTOCOL_VERSION",
    "RECORD_TYPES",
    "AskStatistics",
    "AskStatus",
    "AskTrace",
    "AttachSlab",
    "BeginTrace",
    "Cancel",
    "DetachSlab",
    "ExitStatus",
    "Failure",
    "ForgetStatistics",
    "Hello",
    "Incident",
    "Infer",
    "InferForm",
    "LoadFailed",
    "LoadModel",
    "Log",
    "ModelLoaded",
    "ModelStatus",
    "Record",
    "Refused",
    "Region",
    "Release",
    "Result",
    "ResultForm",
    "RunStatus",
    "SampleRecord",
    "SequenceStep",
    "SpanRecord",
    "StateForm",
    "StatisticsTold",
    "Status",
    "TensorForm",
    "TraceTold",
    "Welcome",
]

PROTOCOL_VERSION = 12


class Hello(NamedTuple):
    """First record of a frontend. ``parent`` is the process number of its server."""

    protocol: int
    version: str
    pid: int
    parent: int


class Welcome(NamedTuple):
    """The worker's answer to a Hello of its own protocol version."""

    protocol: int
    version: str
    pid: int


class Refused(NamedTuple):
    """The worker's answer to a Hello it cannot serve; the connection closes after it."""

    code: str
    message: str


class AttachSlab(NamedTuple):
    """Announces a sealed memfd, sent beside this record; its owner alone allocates in it."""

    slab: int
    size: int


class DetachSlab(NamedTuple):
    """The owner has given the slab up; no record will name it again."""

    slab: int


class StateForm(NamedTuple):
    """What a model hands on from one request of a sequence to the next: ``output`` to ``input``.

    ``datatype`` and ``shape`` are those of the first request's, with the batch dimension, 1, where
    the model has one. ``file`` holds its value, as a tensor lies in shared memory; empty: zeros.
    """

    input: str
    output: str
    datatype: str
    shape: tuple[int, ...]
    file: str


class LoadModel(NamedTuple):
    """Asks for a session of one model version; ``model`` names it in later records.

    ``mark`` is a region of the frontend's in which the worker notes that it has begun
    (see ``brisk.protocol.shared_memory.request_flags``). ``max_batch_size`` 0: the model's first
    dimension is no batch.
    ``batching``: queued requests may be joined along the batch dimension. ``states``: kept for up
    to ``max_sequences`` sequences, each until it has been idle for ``sequence_idle_ns``.
    ``tuning``: of ONNX Runtime's sessions of the model. ``strikes``: workers that its load has
    ended.
    """

    model: int
    name: str
    version: int
    path: str
    mark: Region
    max_batch_size: int
    batching: bool
    max_queue_size: int
    job_class: str
    states: tuple[StateForm, ...] = ()
    max_sequences: int = 0
    sequence_idle_ns: int = 0
    tuning: SessionTuning = SessionTuning()
    strikes: int = 0


class ModelLoaded(NamedTuple):
    """The session is ready. ``load_ns`` is what the load took; 0 if it was loaded already."""

    model: int
    load_ns: int


class LoadFailed(NamedTuple):
    model: int
    code: str
    message: str


class Failure(NamedTuple):
    request: int
    code: str
    message: str


class Log(NamedTuple):
    """A line for Triton's log. ``level``: ``info``, ``warning`` or ``error``."""

    level: str
    text: str


Record: TypeAlias = (
    "Hello | Welcome | Refused | AttachSlab | DetachSlab | LoadModel | ModelLoaded | LoadFailed "
    "| Infer | Cancel | Result | Failure | Release | Log "
    "| AskStatistics | ForgetStatistics | StatisticsTold | AskStatus | Status "
    "| BeginTrace | AskTrace | TraceTold"
)

RECORD_TYPES: tuple[type, ...] = (
    Hello,
    Welcome,
    Refused,
    AttachSlab,
    DetachSlab,
    LoadModel,
    ModelLoaded,
    LoadFailed,
    Infer,
    Cancel,
    Result,
    Failure,
    Release,
    Log,
    AskStatistics,
    ForgetStatistics,
    StatisticsTold,
    AskStatus,
    Status,
    BeginTrace,
    AskTrace,
    TraceTold,
)
