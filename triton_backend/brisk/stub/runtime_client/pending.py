"""The unanswered records of a worker: requests, and the load of their model.

When a worker crashes, both are sent to the next one, and given up after they have crashed several.
A mark in shared memory, which the worker sets when it begins, says what it was doing.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from brisk.errors import BriskError, InternalError, UnavailableError
from brisk.protocol.records import Infer, LoadModel, ModelLoaded, Region, Result, TensorForm
from brisk.protocol.shared_memory import MARK_BYTES, Arena, mark_is_set, padded, reset_mark

MAX_LOAD_STRIKES = 3
"""The number of worker crashes attributed to a model's load after which the model is given up."""

RETRY_S = 1.0
"""The time after a failed load in which requests are refused without another attempt."""

MAX_STRIKES = 2
"""The number of worker crashes attributed to a request after which it is refused."""

OutputReader = Callable[[Region], memoryview]


class Reply(ABC):
    """The receiver of a request's answer. Exactly one of the two methods is called, once, from any
    thread."""

    @abstractmethod
    def succeed(self, result: Result, read: OutputReader) -> None:
        """Accept the answer. ``read`` returns an output's bytes, valid only during this call."""

    @abstractmethod
    def fail(self, error: BriskError) -> None: ...


class Pending:
    """An unanswered request. ``strikes``: how often a worker crashed while it ran."""

    __slots__ = ("record", "reply", "strikes")

    def __init__(self, record: Infer, reply: Reply) -> None:
        self.record = record
        self.reply = reply
        self.strikes = 0


class StagedRequest(NamedTuple):
    """A request with memory for its inputs in shared memory, to be submitted.

    ``mark``: the whole region, which begins with the mark. ``regions``: one in it for each of
    ``tensors``, in order.
    """

    mark: Region
    tensors: tuple[TensorForm, ...]
    regions: tuple[Region, ...]


def stage_request(
    arena: Arena, tensors: tuple[TensorForm, ...], sizes: Sequence[int]
) -> StagedRequest:
    """Allocate one region for the mark and all inputs, of these ``sizes`` in bytes.

    Raises UnavailableError if there is no memory.
    """
    *places, end = accumulate(map(padded, sizes), initial=MARK_BYTES)
    whole = arena.allocate(end)
    regions = tuple(
        Region(whole.slab, whole.offset + place, size)
        for size, place in zip(sizes, places, strict=True)
    )
    return StagedRequest(whole, tensors, regions)


class PendingTable:
    """The unanswered requests, by number, and the memory that they hold. Not thread-safe."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._pending: dict[int, Pending] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, number: int) -> bool:
        return number in self._pending

    def add(self, record: Infer, reply: Reply) -> None:
        reset_mark(self._arena.memory(record.mark))
        self._pending[record.request] = Pending(record, reply)

    def take(self, number: int) -> Pending | None:
        """Remove a request, free its memory and return it; None if it is not pending."""
        pending = self._pending.pop(number, None)
        if pending is not None:
            self._arena.free(pending.record.mark)
        return pending

    def take_all(self) -> list[Pending]:
        pendings = [self.take(number) for number in list(self._pending)]
        return [pending for pending in pendings if pending is not None]

    def strike(self) -> list[Pending]:
        """Attribute a worker's crash to the requests that it was running; remove and return those
        with ``MAX_STRIKES``."""
        for pending in self._pending.values():
            if mark_is_set(self._arena.memory(pending.record.mark)):
                pending.strikes += 1
        guilty = [each for each in self._pending.values() if each.strikes >= MAX_STRIKES]
        for pending in guilty:
            self.take(pending.record.request)
        return guilty

    def replay(self) -> Iterator[Infer]:
        """Yield the records to send to a new worker, with their marks reset."""
        for pending in self._pending.values():
            reset_mark(self._arena.memory(pending.record.mark))
            yield pending.record._replace(is_replay=True)


class ModelLoad:
    """The load of a model by a worker. Only the receiver's thread calls ``settle`` and ``strike``;
    any thread may use ``wait`` and ``failure``."""

    def __init__(self, model: LoadModel, arena: Arena, *, is_waited_for: bool = True) -> None:
        """Make an unsettled load. ``is_waited_for``: a thread will call ``wait``."""
        self.model = model
        self.is_waited_for = is_waited_for
        self._arena = arena
        self._mark = arena.allocate(MARK_BYTES)
        self._strikes = model.strikes
        self._is_loading = False
        self._cause = "entry" if is_waited_for else "request"
        self.is_deferred = False
        """Whether the load is deferred: no worker has the model, or is loading it, until ``begin``
        is called."""
        self.is_given_up = False
        """Whether no worker is asked for the model any more."""
        self._outcome: ModelLoaded | BriskError | None = None
        """The first load's outcome, or later the error with which the model was given up."""
        self._refusal: BriskError | None = None
        self._retry_s = 0.0
        """The time until which requests get ``_refusal``, unless the model is given up."""
        self._settled = threading.Event()

    @property
    def failure(self) -> BriskError | None:
        """The error for a request that comes now; None: the model is served, or is tried again."""
        is_refused = self.is_given_up or time.monotonic() < self._retry_s
        return self._refusal if is_refused else None

    @property
    def is_settled(self) -> bool:
        """Whether the first load has ended, successfully or not."""
        return self._settled.is_set()

    def wait(self) -> int:
        """Wait until the first load has ended. Return its time in ns; raise its error.

        This always ends: the receiver settles the load with an answer or an error.
        """
        self._settled.wait()
        if isinstance(self._outcome, ModelLoaded):
            return self._outcome.load_ns
        assert self._outcome is not None
        raise self._outcome

    def begin(self) -> LoadModel:
        """Note that a worker begins to load; return the record to send to it."""
        reset_mark(self._arena.memory(self._mark))
        self._is_loading = True
        self.is_deferred = False
        return self.model._replace(mark=self._mark, strikes=self._strikes, cause=self._cause)

    def settle(
        self, outcome: ModelLoaded | BriskError, *, is_final: bool = False
    ) -> BriskError | None:
        """Note a load's outcome; return the error for the requests that wait for it, if it failed.

        The model is given up if that ``is_final``, or if a thread waits for its first load. After
        any other failure a request begins another load: at once if memory was short, else after
        ``RETRY_S``. The file of a model that was served may be whole again by then.
        """
        # A ready session still loads segments; the worker resets the mark after the last.
        self._is_loading = isinstance(outcome, ModelLoaded)
        self.is_deferred = False
        if isinstance(outcome, ModelLoaded):
            self._refusal = None
        elif is_final or (self.is_waited_for and not self.is_settled):
            self._refusal, self.is_given_up = outcome, True
        else:
            is_short = isinstance(outcome, UnavailableError)
            self._refusal = outcome if is_short else self._unloaded(outcome)
            self._retry_s = time.monotonic() + (0.0 if is_short else RETRY_S)
            self.is_deferred = True
            return self._refusal
        self._outcome = outcome
        self._settled.set()
        return self._refusal

    def _unloaded(self, error: BriskError) -> UnavailableError:
        return UnavailableError(
            f"model '{self.model.name}' version {self.model.version} cannot be loaded now: "
            f"{error}; it is tried again with a request, at most once a second"
        )

    def strike(self) -> BriskError | None:
        """Note a worker's crash. Return the error to settle with if the load has caused
        ``MAX_LOAD_STRIKES`` crashes."""
        if self._outcome is not None or self._is_loading:
            self._cause = "restart"
        if not self._is_loading:
            return None
        if not mark_is_set(self._arena.memory(self._mark)):
            if self._outcome is not None:
                self._strikes = 0  # it was loaded to the end
            return None
        self._is_loading = False  # counted once; the next worker begins anew
        self._strikes += 1
        if self._strikes < MAX_LOAD_STRIKES:
            return None
        return InternalError(
            f"loading model '{self.model.name}' version {self.model.version} ended "
            f"{self._strikes} workers; it is given up"
        )
