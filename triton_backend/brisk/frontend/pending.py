"""A request between ``execute`` and its answer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from brisk.errors import BriskError
from brisk.wire.records import Infer, Region, Result, TensorRecord

MAX_STRIKES = 2
"""Workers a request may take down with it before it is refused."""

OutputReader = Callable[[TensorRecord], memoryview]


class Reply(ABC):
    """Where a request's answer goes. Exactly one of the two is called, once, from any thread."""

    @abstractmethod
    def succeed(self, result: Result, read: OutputReader) -> None:
        """``read`` gives an output's bytes, valid only until this returns."""

    @abstractmethod
    def fail(self, error: BriskError) -> None: ...


@dataclass(slots=True, eq=False)
class Pending:
    """``region`` holds the mark and all inputs; it is freed with the answer.

    ``strikes``: how often the worker died while this request ran.
    """

    record: Infer
    region: Region
    reply: Reply
    strikes: int = field(default=0)


@dataclass(frozen=True, slots=True)
class StagedRequest:
    """A request whose inputs lie in shared memory, ready to be submitted."""

    region: Region
    mark: Region
    inputs: Sequence[TensorRecord]
