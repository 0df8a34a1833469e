"""What a worker sends, handed to whom it is for."""

from __future__ import annotations

import threading
from collections.abc import Callable

from brisk.errors import BriskError, ProtocolError, named_error
from brisk.protocol.records import (
    AttachSlab,
    DetachSlab,
    Failure,
    LoadFailed,
    Log,
    ModelLoaded,
    Record,
    Release,
    Result,
    StatisticsTold,
)
from brisk.protocol.shared_memory.arena import ArenaView
from brisk.stub.runtime_client.pending import PendingTable
from brisk.stub.runtime_client.sender import Sender


class Answers:
    """Takes a worker's records in: the receiver's thread, or one that attends.

    ``lock`` is the link's; it guards ``pending`` and ``line``. ``settle`` is called without it,
    with how a load has ended.
    """

    def __init__(
        self,
        lock: threading.Lock,
        line: Sender,
        pending: PendingTable,
        settle: Callable[[ModelLoaded | BriskError], None],
        tell: Callable[[StatisticsTold], None],
        log: Callable[[str, str], None],
    ) -> None:
        self._lock = lock
        self._line = line
        self._pending = pending
        self._settle = settle
        self._tell = tell
        self._log = log
        self._view = ArenaView()

    def take(self, record: Record, descriptor: int | None) -> None:
        """Raises ProtocolError for what a worker may not send."""
        if isinstance(record, Result):
            self._succeed(record)
        elif isinstance(record, Failure):
            self._fail(record)
        elif isinstance(record, AttachSlab) and descriptor is not None:
            self._view.attach(record.slab, record.size, descriptor)
        elif isinstance(record, DetachSlab):
            self._view.detach(record.slab)
        elif isinstance(record, ModelLoaded):
            self._settle(record)
        elif isinstance(record, LoadFailed):
            self._settle(named_error(record.code, record.message))
        elif isinstance(record, StatisticsTold):
            self._tell(record)
        elif isinstance(record, Log):
            self._log(record.level, record.text)
        else:
            raise ProtocolError(f"a worker may not send {type(record).__name__}")

    def clear(self) -> None:
        """The worker is gone, and its memory with it. The receiver's thread."""
        self._view.clear()

    def _succeed(self, result: Result) -> None:
        with self._lock:
            pending = self._pending.take(result.request)
        if pending is None:
            raise ProtocolError(f"an answer to request {result.request}, which is not in flight")
        try:
            pending.reply.succeed(result, self._view.memory)
        finally:
            with self._lock:
                self._line.send(Release(result.request))

    def _fail(self, failure: Failure) -> None:
        with self._lock:
            pending = self._pending.take(failure.request)
        if pending is not None:
            pending.reply.fail(named_error(failure.code, failure.message))
