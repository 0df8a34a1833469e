"""A request between ``execute`` and its answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from brisk.errors import BriskError
from brisk.protocol.records import Infer, Region, Result, TensorForm
from brisk.protocol.shared_memory import request_flags
from brisk.protocol.shared_memory.arena import ALIGNMENT, Arena

MAX_STRIKES = 2
"""Workers a request may take down with it before it is refused."""

OutputReader = Callable[[Region], memoryview]


class Reply(ABC):
    """Where a request's answer goes. Exactly one of the two is called, once, from any thread."""

    @abstractmethod
    def succeed(self, result: Result, read: OutputReader) -> None:
        """``read`` gives an output's bytes, valid only until this returns."""

    @abstractmethod
    def fail(self, error: BriskError) -> None: ...


class Pending:
    """``region`` holds the mark and all inputs; it is freed with the answer.

    ``strikes``: how often the worker died while this request ran.
    """

    __slots__ = ("record", "region", "reply", "strikes")

    def __init__(self, record: Infer, region: Region, reply: Reply) -> None:
        self.record = record
        self.region = region
        self.reply = reply
        self.strikes = 0


class StagedRequest(NamedTuple):
    """A request whose inputs lie in shared memory, ready to be submitted.

    ``regions``: of ``tensors``, in their order.
    """

    region: Region
    mark: Region
    tensors: tuple[TensorForm, ...]
    regions: tuple[Region, ...]


def stage_request(
    arena: Arena, tensors: tuple[TensorForm, ...], sizes: Sequence[int]
) -> StagedRequest:
    """One region for the mark and all inputs, of these ``sizes`` in bytes.

    Raises UnavailableError where there is no memory.
    """
    offset, places = request_flags.MARK_BYTES, []
    for size in sizes:
        places.append(offset)
        offset += (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    whole = arena.allocate(offset)
    regions = tuple(
        Region(whole.slab, whole.offset + place, size)
        for size, place in zip(sizes, places, strict=True)
    )
    return StagedRequest(
        whole, Region(whole.slab, whole.offset, request_flags.MARK_BYTES), tensors, regions
    )


class PendingTable:
    """Requests without an answer, by number, and the memory they hold. Not thread-safe."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._pending: dict[int, Pending] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, number: int) -> bool:
        return number in self._pending

    def __iter__(self) -> Iterator[Pending]:
        return iter(list(self._pending.values()))

    def add(self, pending: Pending) -> None:
        request_flags.reset(self._arena.memory(pending.record.mark))
        self._pending[pending.record.request] = pending

    def take(self, number: int) -> Pending | None:
        """The request, its memory freed; None where it is not pending."""
        pending = self._pending.pop(number, None)
        if pending is not None:
            self._arena.free(pending.region)
        return pending

    def take_all(self) -> list[Pending]:
        taken = [self.take(number) for number in list(self._pending)]
        return [pending for pending in taken if pending is not None]

    def strike(self) -> list[Pending]:
        """After a worker's death: blame what it was running, take out what is guilty again."""
        guilty = []
        for number, pending in list(self._pending.items()):
            if request_flags.has_begun(self._arena.memory(pending.record.mark)):
                pending.strikes += 1
                if pending.strikes >= MAX_STRIKES:
                    guilty.append(number)
        return [taken for number in guilty if (taken := self.take(number)) is not None]

    def replay(self) -> Iterator[Infer]:
        """The records for a new worker, marks reset."""
        for pending in self._pending.values():
            request_flags.reset(self._arena.memory(pending.record.mark))
            yield pending.record._replace(is_replay=True)
