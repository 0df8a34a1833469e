"""The records of one inference: what is asked, what is answered.

Both are made of a form and of what is this one's own. The form (names, datatypes, shapes) is the
same for one request after the other, so whoever reads it meets the same object again and can keep
what follows from it (``brisk.protocol.compact``).
"""

from typing import NamedTuple


class Region(NamedTuple):
    """A stretch of a slab, in bytes."""

    slab: int
    offset: int
    size: int


class TensorForm(NamedTuple):
    """A tensor in shared memory, wherever it lies.

    ``datatype`` is Triton's name (``FP32``, ``BF16``, ``BYTES`` …); elements lie in row-major
    order, BYTES as Triton serialises them (4-byte little-endian length before each element).
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


class InferForm(NamedTuple):
    """What is asked of ``model``, apart from the values.

    ``outputs``: names wanted, in order; the worker sends no others. ``agreement_ppm``: of a
    million early answers of learned caches, how many must be the model's own; None: as promised,
    a million: no early answers.
    """

    model: int
    inputs: tuple[TensorForm, ...]
    outputs: tuple[str, ...]
    job_class: str
    agreement_ppm: int | None = None


class SequenceStep(NamedTuple):
    """Which sequence a request belongs to, and whether it is the first or the last of it.

    ``sequence``: the correlation id as JSON, so that 7 and "7" are two sequences, as in Triton.
    """

    sequence: str
    starts: bool
    ends: bool


class Infer(NamedTuple):
    """One request. ``regions``: of the form's inputs, in their order.

    ``mark``: where the worker notes that it has begun
    (``brisk.protocol.shared_memory.request_flags``).
    ``deadline_ns``: CLOCK_MONOTONIC time after which the answer is of no use; None: no limit.
    ``is_replay``: an earlier worker had it; it waits again whatever the queue's bound is.
    ``trace_context``: Triton's, where it traces the request; else empty. ``arrived_ns``: when
    Triton handed it to the frontend, CLOCK_MONOTONIC, for whoever records a trace; 0: unknown.
    ``step``: of a model with states, whose they are; None for any other.
    """

    request: int
    form: InferForm
    regions: tuple[Region, ...]
    mark: Region
    deadline_ns: int | None = None
    is_replay: bool = False
    trace_context: str = ""
    arrived_ns: int = 0
    step: SequenceStep | None = None


class Cancel(NamedTuple):
    """The client has gone; the worker answers with a Failure as soon as it can."""

    request: int


class ResultForm(NamedTuple):
    """What an answer consists of.

    ``exits``: who answered, row by row, where a learned cache answered any of them; else empty.
    """

    outputs: tuple[TensorForm, ...]
    exits: str = ""


class Result(NamedTuple):
    """The answer. Its regions, of the form's outputs in their order, stay the frontend's to read
    until it sends Release.

    ``started_ns``: when it was taken up for its first layer, a time of the monotonic clock,
    which all processes of a machine share.
    """

    request: int
    form: ResultForm
    regions: tuple[Region, ...]
    queue_ns: int
    execution_ns: int
    started_ns: int


class Release(NamedTuple):
    """The frontend has copied the Result of ``request``; its regions are free again."""

    request: int
