"""The records of the protocol: one frozen dataclass per message, all fields typed.

A connection starts with ``Hello`` and ``Welcome``. Afterwards the frontend sends ``AttachSlab``,
``LoadModel``, ``Infer``, ``Cancel``, ``Release``, ``AskStatistics``, ``ForgetStatistics`` and
``AskStatus``; the worker sends ``AttachSlab``, ``ModelLoaded``, ``LoadFailed``, ``Result``,
``Failure``, ``Log``, ``StatisticsTold`` and ``Status``. Closing the connection gives back
everything it held.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from brisk.wire.observing import (
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

__all__ = [
    "PROTOCOL_VERSION",
    "RECORD_TYPES",
    "Announce",
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
    "RunStatus",
    "SampleRecord",
    "SpanRecord",
    "StatisticsTold",
    "Status",
    "TensorRecord",
    "TraceTold",
    "Welcome",
]

PROTOCOL_VERSION = 5


@dataclass(frozen=True, slots=True)
class Hello:
    """First record of a frontend. ``parent`` is the process number of its server."""

    protocol: int
    version: str
    pid: int
    parent: int


@dataclass(frozen=True, slots=True)
class Welcome:
    """The worker's answer to a Hello of its own protocol version."""

    protocol: int
    version: str
    pid: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The worker's answer to a Hello it cannot serve; the connection closes after it."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Region:
    """A stretch of a slab, in bytes."""

    slab: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """A tensor in shared memory.

    ``datatype`` is Triton's name (``FP32``, ``BF16``, ``BYTES`` …); elements lie in row-major
    order, BYTES as Triton serialises them (4-byte little-endian length before each element).
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    region: Region


@dataclass(frozen=True, slots=True)
class AttachSlab:
    """Announces a sealed memfd, sent beside this record; its owner alone allocates in it."""

    slab: int
    size: int


@dataclass(frozen=True, slots=True)
class DetachSlab:
    """The owner has given the slab up; no record will name it again."""

    slab: int


@dataclass(frozen=True, slots=True)
class LoadModel:
    """Asks for a session of one model version; ``model`` names it in later records.

    ``mark`` is a region of the frontend's in which the worker notes that it has begun
    (see ``brisk.wire.mark``). ``max_batch_size`` 0: the model's first dimension is no batch.
    ``batching``: queued requests may be joined along the batch dimension.
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


@dataclass(frozen=True, slots=True)
class ModelLoaded:
    """The session is ready. ``load_ns`` is what the load took; 0 if it was loaded already."""

    model: int
    load_ns: int


@dataclass(frozen=True, slots=True)
class LoadFailed:
    model: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Infer:
    """One request.

    ``deadline_ns``: CLOCK_MONOTONIC time after which the answer is of no use; None: no limit.
    ``outputs``: names wanted, in order; the worker sends no others.
    ``is_replay``: an earlier worker had it; it waits again whatever the queue's bound is.
    ``trace_context``: Triton's, where it traces the request; else empty.
    ``agreement_ppm``: of a million early answers of learned caches, how many must be the model's
    own; None: as promised, a million: no early answers.
    """

    request: int
    model: int
    inputs: tuple[TensorRecord, ...]
    outputs: tuple[str, ...]
    job_class: str
    deadline_ns: int | None
    mark: Region
    is_replay: bool
    trace_context: str = ""
    agreement_ppm: int | None = None


@dataclass(frozen=True, slots=True)
class Announce:
    """A request is about to come: its frontend is copying its inputs. Nothing follows from it."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """The client has gone; the worker answers with a Failure as soon as it can."""

    request: int


@dataclass(frozen=True, slots=True)
class Result:
    """The answer. Its regions stay the frontend's to read until it sends Release.

    ``started_ns``: when it was taken up for its first layer, a time of the monotonic clock,
    which all processes of a machine share. ``exits``: who answered, row by row, where a learned
    cache answered any of them; else empty.
    """

    request: int
    outputs: tuple[TensorRecord, ...]
    queue_ns: int
    execution_ns: int
    started_ns: int
    exits: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    request: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Release:
    """The frontend has copied the Result of ``request``; its regions are free again."""

    request: int


@dataclass(frozen=True, slots=True)
class Log:
    """A line for Triton's log. ``level``: ``info``, ``warning`` or ``error``."""

    level: str
    text: str


Record: TypeAlias = (
    "Hello | Welcome | Refused | AttachSlab | DetachSlab | LoadModel | ModelLoaded | LoadFailed "
    "| Announce | Infer | Cancel | Result | Failure | Release | Log "
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
    Announce,
)
