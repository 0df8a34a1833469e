"""A stub's connection to one worker: it sends requests, takes answers, survives crashes.

Two threads use it: Triton's, which submits, and the receiver's, which passes on answers. When the
connection breaks, the receiver's thread makes a new one and replays unanswered records. Inference
is idempotent and the inputs are in memory of this process, so a replay copies nothing (REEF, 4.2).
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from brisk.errors import (
    BriskError,
    CancelledError,
    InternalError,
    ProtocolError,
    UnavailableError,
    named_error,
)
from brisk.protocol import records
from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.protocol.shared_memory import Arena, ArenaView
from brisk.stub.runtime_client.pending import ModelLoad, PendingTable, Reply
from brisk.stub.runtime_client.runtime_process import open_connection
from brisk.stub.runtime_client.transport import DirectSender, QueuedSender, Reader, Sender

RESTART_TIMEOUT_S = 60.0
"""The time for which requests wait for a new runtime before they fail; then connecting is tried
again."""


class Offer(NamedTuple):
    """A worker's offer to compute the model in this process (``brisk.stub.local.offered_model``).

    ``gate``: a descriptor, which the receiver of the offer closes.
    """

    record: records.ComputeInStub
    gate: int


class WorkerConnection:
    """A connection to the worker of one role. ``log(level, text)`` and ``tell`` are called from
    any thread.

    Only the arena is shared with the client's other connection, so that a crash or the slowness of
    one worker does not affect the other.
    """

    def __init__(
        self,
        place: RuntimePaths,
        role: Role,
        load: ModelLoad,
        arena: Arena,
        log: Callable[[str, str], None],
        tell: Callable[[records.StatisticsTold], None],
        take_offer: Callable[[Offer | None], None],
    ) -> None:
        """Make a connection; ``open`` opens it. ``take_offer``: called with each offer, and with
        None when it is withdrawn."""
        self._take_offer = take_offer
        self._place = place
        self._role = role
        self.load = load
        self._log = log
        self._tell = tell
        self._arena = arena
        self._view = ArenaView()
        self._lock = threading.Lock()  # of the line and of what is pending
        kind = DirectSender if role is Role.FOREGROUND else QueuedSender
        self._line: Sender = kind(arena, role.value)
        self._pending = PendingTable(arena)
        self._closing = False
        self._refused = ""
        """The last logged reason why a model that was served cannot be loaded again."""
        self.reader = Reader(self._take, self._break_off)
        self._receiver: threading.Thread | None = None

    def open(self) -> None:
        """Connect, request the model, begin to receive. Raises what ``open_connection`` raises,
        OSError and RuntimeError if the system has no descriptor or thread left.

        If no thread waits for the load, the receiver's thread does all of this: requests may be
        submitted at once.
        """
        opened = None
        if self.load.is_waited_for:
            opened = open_connection(self._place, self._role)
            self.reader.use(opened)
            self._resume(opened)
        receiver = threading.Thread(
            target=self._receive, args=(opened,), name=f"brisk-{self._role.value}", daemon=True
        )
        receiver.start()
        self._receiver = receiver

    @property
    def is_open(self) -> bool:
        """Whether ``open`` has succeeded: else no request that is submitted is ever answered."""
        return self._receiver is not None

    def submit(self, record: records.Infer, reply: Reply) -> None:
        """Send a request, now or when a worker runs; its memory is freed with its answer.

        ``reply`` is called exactly once, whatever happens.
        """
        unsent: ProtocolError | None = None
        with self._lock:
            refusal = self._unloading() if self._closing else self.load.failure
            if refusal is None:
                self._pending.add(record, reply)
                try:
                    if self.load.is_deferred:
                        self._line.send(self.load.begin())
                    self._line.send(record)
                except ProtocolError as error:  # the record is too long
                    self._pending.take(record.request)
                    unsent = error
        if refusal is not None:
            self._arena.free(record.mark)
        if (failed := refusal or unsent) is not None:
            reply.fail(failed)

    def cancel(self, number: int) -> None:
        """Ask the worker to cancel the request; its reply is called as for any other.

        Without a worker the request fails at once. Nothing happens if it is not in flight.
        """
        unsent = None
        with self._lock:
            if number in self._pending and not self._line.send(records.Cancel(number)):
                unsent = self._pending.take(number)
        if unsent is not None:
            unsent.reply.fail(CancelledError("the client cancelled the request"))

    def send(
        self,
        record: records.AskStatistics | records.ForgetStatistics | records.ComputedInStub,
    ) -> None:
        """Send a record; it is dropped if there is no worker."""
        with self._lock:
            self._line.send(record)

    def close(self) -> None:
        """End the connection; requests still unanswered fail."""
        with self._lock:
            self._closing = True
            self._line.break_off()
        if self._receiver is not None:
            self._receiver.join(timeout=10.0)
        self._fail_all(self._unloading())

    @property
    def pending(self) -> int:
        """The number of requests in flight."""
        with self._lock:
            return len(self._pending)

    def _unloading(self) -> BriskError:
        return UnavailableError(f"model '{self.load.model.name}' is being unloaded")

    def _break_off(self) -> None:
        with self._lock:
            self._line.break_off()

    # --- receiving; the receiver's thread, or one that attends -----------------------------

    def _receive(self, opened: socket.socket | None) -> None:
        while not self._closing:
            try:
                self.reader.read()
            except Exception as error:  # noqa: BLE001  # without this thread every request hangs
                if not isinstance(error, (EOFError, OSError)):
                    text = f"{type(error).__name__}: {error}"
                    self._log("error", f"the line to the runtime is given up: {text}")
                self.reader.use(None)
                if opened is not None:
                    opened.close()
                if not self._closing:
                    opened = self._recover()
        if opened is not None:  # closing was seen before the end of the line was read
            opened.close()

    def _take(self, record: records.Record, descriptor: int | None) -> None:
        """Handle a record from the worker. Raises ProtocolError for one that it may not send."""
        match record:
            case records.Result():
                self._succeed(record)
            case records.Failure(number, code, message):
                with self._lock:
                    pending = self._pending.take(number)
                if pending is not None:
                    pending.reply.fail(named_error(code, message))
            case records.AttachSlab(slab, size) if descriptor is not None:
                self._view.attach(slab, size, descriptor)
            case records.DetachSlab(slab):
                self._view.detach(slab)
            case records.ModelLoaded():
                self._settle_load(record)
            case records.LoadFailed(_, code, message):
                self._settle_load(named_error(code, message))
            case records.StatisticsTold():
                self._tell(record)
            case records.ComputeInStub() if descriptor is not None:
                self._take_offer(Offer(record, descriptor))
            case records.ComputeNoMore():
                self._take_offer(None)
            case records.Log(level, text):
                self._log(level, text)
            case _:
                raise ProtocolError(f"a worker may not send {type(record).__name__}")

    def _succeed(self, result: records.Result) -> None:
        with self._lock:
            pending = self._pending.take(result.request)
        if pending is None:
            raise ProtocolError(f"an answer to request {result.request}, which is not in flight")
        try:
            pending.reply.succeed(result, self._view.memory)
        finally:
            with self._lock:
                self._line.send(records.Release(result.request))

    def _settle_load(
        self, outcome: records.ModelLoaded | BriskError, *, is_final: bool = False
    ) -> None:
        with self._lock:
            refusal = self.load.settle(outcome, is_final=is_final)
        if refusal is None:
            self._refused = ""
            return
        if self.load.is_deferred and str(refusal) != self._refused:
            self._refused = str(refusal)
            self._log("error", self._refused)
        self._fail_all(refusal)

    def _fail_all(self, error: BriskError) -> None:
        with self._lock:
            pending = self._pending.take_all()
        for request in pending:
            request.reply.fail(error)

    # --- after the worker's death; the receiver's thread ----------------------------------

    def _recover(self) -> socket.socket | None:
        """Attribute the crash, connect again, load and replay. Return the new connection; None if
        there is none yet."""
        self._break_off()
        if self._role is Role.FOREGROUND:
            self._take_offer(None)  # it was that worker's, with its gate
        self._view.clear()
        self._blame()
        started_s = time.monotonic()
        opened = None
        try:
            opened = open_connection(self._place, self._role, RESTART_TIMEOUT_S)
            if self._closing:
                return opened
            self.reader.use(opened)
            replayed = self._resume(opened)
        except (BriskError, OSError, RuntimeError) as error:  # of threads: none can be started
            self._break_off()
            self.reader.use(None)
            if opened is not None:
                opened.close()
            self._log("error", f"no runtime: {error}")
            unavailable = UnavailableError(f"the runtime cannot be restarted: {error}")
            self._fail_all(unavailable)
            if self.load.is_waited_for and not self.load.is_settled:
                self._settle_load(error if isinstance(error, BriskError) else unavailable)
            time.sleep(1.0)
            return None
        if self.load.is_settled:
            took_ms = (time.monotonic() - started_s) * 1e3
            self._log(
                "warning",
                f"connected to a new worker after {took_ms:.0f} ms, {replayed} requests replayed",
            )
        return opened

    def _resume(self, opened: socket.socket) -> int:
        """Send everything to a new worker: memory, model, requests. Return the number of
        requests."""
        with self._lock:
            self._line.connect(opened)
            if not self.load.is_given_up:
                self._line.send(self.load.begin())
            for record in self._pending.replay():
                self._line.send(record)
            return len(self._pending)

    def _blame(self) -> None:
        """Attribute a worker's crash to its load or requests; fail those that have caused too
        many."""
        failure = self.load.strike()
        if failure is not None:
            self._settle_load(failure, is_final=True)
        with self._lock:
            guilty = self._pending.strike()
        for pending in guilty:
            text = (
                f"request {pending.record.request} of model '{self.load.model.name}' was running "
                f"when {pending.strikes} workers died; it is not tried again"
            )
            self._log("error", text)
            pending.reply.fail(InternalError(text))
