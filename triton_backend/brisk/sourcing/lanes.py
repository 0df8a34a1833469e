"""Requests to one source, back to back; arriving chunks are verified before they are written.

Each source has two request tasks ("lanes") that alternate. One sends its request when the rest of
the other's answer takes about as long as a request takes to be answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple, Protocol

from brisk.errors import BriskError, InternalError
from brisk.sourcing.log import LOGGER
from brisk.sourcing.policies.patience import SLOW_S, RateMeter, Waited, pause_s
from brisk.sourcing.policies.stretches import Layout, Stretch, bits_of
from brisk.sourcing.sources.failures import MissingError, SourceError, WrongBytesError
from brisk.sourcing.sources.registry import ByteSource, Pieces, expect_any

LANES = 2
_USUAL_ANSWER_S = 0.01

MOST_GATHERED_BYTES = 1 << 17
GATHER_S = 0.004
"""The time for which arriving bytes are gathered before a wake-up: at most
``MOST_GATHERED_BYTES``, and no more than the chunk lacks. A wake-up for each packet takes three
times the processor time, of which several couriers have too little."""
_SLOWER = 1.5
"""The largest factor by which one answer raises the usual answer time: a longer answer first
counts as an accident."""


class Bell:
    """An event that wakes all who wait when it is rung."""

    def __init__(self) -> None:
        self._rung: asyncio.Future[None] | None = None

    def ring(self) -> None:
        if self._rung is not None and not self._rung.done():
            self._rung.set_result(None)
        self._rung = None

    def rung(self) -> asyncio.Future[None]:
        """Return a future that is done at the next ``ring``. Never cancel it: it is shared."""
        if self._rung is None:
            self._rung = asyncio.get_running_loop().create_future()
        return self._rung

    async def wait(self, timeout_s: float) -> None:
        await asyncio.wait([self.rung()], timeout=timeout_s)


class Portion:
    """The chunks of one file that one request asks for, in order; ``next`` is arriving now."""

    def __init__(self, chunks: Stretch, asked_s: float) -> None:
        self.next, self.end = chunks
        self.asked_s = asked_s
        self.chunk_s = asked_s
        """Since when the chunk ``next`` may arrive; infinity while it is verified and written."""
        self.heard_s: float | None = None
        self.task: asyncio.Task[None] | None = None
        self.expect: Callable[[int], None] = expect_any
        """The ``Pieces.expect`` of the answer."""

    @property
    def bits(self) -> int:
        return bits_of(Stretch(self.next, self.end))

    def cut(self) -> None:
        """End the request with the chunk that is arriving now."""
        self.end = min(self.end, self.next + 1)


class Customer(Protocol):
    """The interface of an object that wants chunks from its suppliers."""

    @property
    def layout(self) -> Layout: ...

    def next_portion(self, supplier: Supplier) -> Stretch | None:
        """Return the chunks to request now; None if there are none until ``wait_for_news``
        returns."""

    async def wait_for_news(self) -> None: ...

    async def put(self, index: int, pieces: list[bytes | memoryview]) -> bool:
        """Keep a chunk; return False if its digest is wrong. Raises BriskError if it cannot be
        kept."""

    def is_stuck(self, supplier: Supplier, portion: Portion) -> bool:
        """Whether a peer has received no chunk since the request, by its own report."""

    def note(self, supplier: Supplier) -> None:
        """Note that a request to a source has ended: its chunks may be requested elsewhere."""

    def reject_form(self, number: int, problem: str) -> None:
        """Note that a prepared form, by its file's number, is damaged or not at the registry."""

    def fail(self, error: BriskError) -> None:
        """Note that no chunk can be kept any more."""


class Record(NamedTuple):
    """A source's name, what came from it so far, and its last problem."""

    name: str
    bytes_total: int
    bytes_per_s: float
    rejected: int
    problem: str


class Supplier:
    """A source, its request tasks and a record of its behavior. Used from one event loop only."""

    def __init__(
        self,
        source: ByteSource,
        customer: Customer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.source = source
        self.name = source.name
        self.is_peer = source.is_peer
        self.is_ranged = True
        self.is_blamed = False
        self.is_dry = False
        """Whether the peer sent no chunk in its last answer, and received none itself
        meanwhile."""
        self.is_starved = False
        """Whether the peer sent no chunk in its last answer."""
        self.late: Counter[int] = Counter()
        """How often a chunk took too long from this source, so that others are asked for it."""
        self.problem = ""
        self.rejected = 0
        self.slow_bytes_per_s = 0.0
        self.slow_until_s = -math.inf
        """The time until which the source is expected to give at most ``slow_bytes_per_s``."""
        self.portions: list[Portion] = []
        self.meter = RateMeter()
        self._long_meter = RateMeter(SLOW_S)
        self._busy_s: float | None = None
        """The time since which there has always been some request; None if there is none now."""
        self._customer = customer
        self._clock = clock
        self._heard_s = -math.inf
        self._failures = 0
        self._rests_until_s = 0.0
        self.answer_s = _USUAL_ANSWER_S
        """The usual time from a request to the start of its answer."""
        self._hurries = False
        self._turn = asyncio.Lock()
        self._tasks = [asyncio.create_task(self._run()) for _ in range(LANES)]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def record(self) -> Record:
        rate = self.meter.rate(self._clock())
        return Record(self.name, self.meter.total, rate, self.rejected, self.problem)

    @property
    def is_usable(self) -> bool:
        """Whether the source may be asked now."""
        return not self.is_blamed and self._clock() >= self._rests_until_s

    def measured(self, least_s: float) -> float:
        """Return the source's bytes/s; 0 if it has not been busy for ``least_s`` without a
        break."""
        now_s = self._clock()
        if self._busy_s is None or now_s - self._busy_s < least_s:
            return 0.0
        return self._long_meter.rate(now_s)

    def waited(self, portion: Portion, expected: float) -> Waited:
        """Return how a request has been answered so far.

        ``expected``: the bytes/s expected of the source.
        """
        now_s, heard_s = self._clock(), portion.heard_s
        if heard_s is not None:  # nothing is read while a chunk is written, which may take long
            heard_s = max(heard_s, portion.chunk_s)
        return Waited(
            is_peer=self.is_peer,
            asked_s=portion.asked_s,
            heard_s=heard_s,
            bytes_per_s=self._long_meter.rate(now_s),
            busy_s=now_s - (now_s if self._busy_s is None else self._busy_s),
            expected=expected,
        )

    def is_sending(self, within_s: float) -> bool:
        """Whether a byte arrived within ``within_s``, and no request has waited for its first byte
        for more than half of that."""
        now_s = self._clock()
        return now_s - self._heard_s < within_s and not any(
            portion.heard_s is None and now_s - portion.asked_s > within_s / 2
            for portion in self.portions
        )

    def leave(self, portion: Portion, problem: str) -> None:
        """Cancel a request and count it as failed; chunks that have arrived are kept."""
        self._fail(problem, has_come=False)
        if portion.task is not None:
            portion.task.cancel()

    def leave_late(self, portion: Portion, slow_until_s: float) -> None:
        """Leave a request whose chunk takes too long; the source counts as slow until then."""
        self.late[portion.next] += 1
        self.slow_bytes_per_s = max(self._long_meter.rate(self._clock()), 1.0)
        self.slow_until_s = slow_until_s
        self.leave(portion, f"{self.name}: a chunk took too long")

    def drop(self, portion: Portion) -> None:
        """Cancel a request whose answer is not wanted any more; not counted as a failure."""
        if portion.task is not None:
            portion.task.cancel()

    def hurry(self) -> None:
        """Let the other request task send its request after the next chunk, without waiting for
        the rest of this answer: other chunks are wanted sooner."""
        self._hurries = len(self.portions) == 1

    def _ended(self, lane: asyncio.Task[None]) -> None:
        if not lane.cancelled() and (error := lane.exception()) is not None:
            self._customer.fail(InternalError(f"{self.name}: {error!r}"))

    async def _run(self) -> None:
        while True:
            await self._turn.acquire()
            turn = contextlib.ExitStack()
            turn.callback(self._turn.release)
            with turn:
                portion = await self._next()
                portion.task = asyncio.create_task(self._carry(portion, turn))
                try:
                    await asyncio.wait([portion.task])
                finally:
                    portion.task.cancel()
                    self.portions.remove(portion)
                    if not self.portions:
                        self._busy_s = None
                    self._customer.note(self)
                if not portion.task.cancelled():
                    portion.task.result()

    async def _next(self) -> Portion:
        while True:
            chunks = self._customer.next_portion(self) if self.is_usable else None
            if chunks is not None:
                portion = Portion(chunks, self._clock())
                if not self.portions:
                    self._busy_s = portion.asked_s
                    self._long_meter.start(portion.asked_s)
                self.portions.append(portion)
                return portion
            await self._customer.wait_for_news()

    async def _carry(self, portion: Portion, turn: contextlib.ExitStack) -> None:
        before = portion.next
        number, _ = self._customer.layout.place(portion.next)
        is_form = bool(self._customer.layout.manifest.files[number].form)
        try:
            await self._stream(portion, turn)
        except WrongBytesError as error:
            if is_form:  # the source's own chunks of the model may be right
                self._customer.reject_form(number, str(error))
                return
            self.is_blamed = True
            self.problem = str(error)
            return
        except SourceError as error:
            if is_form and not self.is_peer and isinstance(error, MissingError):
                self._customer.reject_form(number, str(error))
                return
            self._fail(str(error), has_come=portion.next > before)
            return
        except BriskError as error:
            self._customer.fail(error)
            return
        except Exception as error:  # noqa: BLE001  # the fetch from other sources goes on
            LOGGER.warning(f"{self.name}: an answer could not be read", exc_info=error)
            self.is_blamed = True
            self.problem = f"{self.name}: {error!r:.200}"
            return
        if portion.next > before:
            self._failures, self.problem = 0, ""
            self.is_starved = False
        if portion.next < portion.end:
            if self.is_peer:  # which ends its answer when nothing new has come to it
                self.is_starved = portion.next == before
                self.is_dry = self.is_starved and self._customer.is_stuck(self, portion)
            else:
                self._fail(f"{self.name} ended an answer early", has_come=portion.next > before)

    def _fail(self, problem: str, *, has_come: bool) -> None:
        self._failures = 1 if has_come else self._failures + 1
        self.problem = problem
        pause = 0.0 if has_come else pause_s(self._failures)
        self._rests_until_s = self._clock() + pause

    async def _stream(self, portion: Portion, turn: contextlib.ExitStack) -> None:
        layout = self._customer.layout
        part = layout.bytes_of(Stretch(portion.next, portion.end))
        file = layout.manifest.files[part.file]
        offset, size = part.offset, part.size
        async with self.source.read(part.file, file, offset, size) as pieces:
            self.is_ranged = pieces.is_ranged
            portion.expect = pieces.expect
            answer_s = self._clock() - portion.asked_s
            self.answer_s = min(answer_s, _SLOWER * self.answer_s)
            await self._collect(portion, pieces, offset - pieces.offset, turn)

    async def _collect(
        self, portion: Portion, pieces: Pieces, skipped: int, turn: contextlib.ExitStack
    ) -> None:
        layout = self._customer.layout
        collected: list[bytes | memoryview] = []
        have, need = 0, layout.range_of(portion.next).size
        remaining = layout.bytes_of(Stretch(portion.next, portion.end)).size
        portion.expect(self._worth(need))
        async for piece in pieces.content:
            now_s = portion.heard_s = self._heard_s = self._clock()
            view = memoryview(piece)
            if skipped:
                view, skipped = view[skipped:], max(skipped - len(view), 0)
            while view:
                part = view[: need - have]
                collected.append(part)
                have, view = have + len(part), view[len(part) :]
                if have < need:
                    portion.expect(self._worth(need - have))
                    break
                self.meter.add(have, now_s)
                self._long_meter.add(have, now_s)
                await self._put(portion, collected)
                remaining -= have
                if portion.next >= portion.end:
                    return
                collected, have = [], 0
                need = layout.range_of(portion.next).size
                if not view:
                    portion.expect(self._worth(need))
                lead = max(need, self.meter.rate(now_s) * self.answer_s)
                if self.is_ranged and (remaining <= lead or self._hurries):
                    self._hurries = False
                    turn.close()

    def _worth(self, missing_bytes: int) -> int:
        """Return how many of a chunk's missing bytes to gather before the task is woken."""
        rate = self.meter.rate(self._clock())
        return min(missing_bytes, MOST_GATHERED_BYTES, int(rate * GATHER_S))

    async def _put(self, portion: Portion, pieces: list[bytes | memoryview]) -> None:
        index, portion.chunk_s = portion.next, math.inf
        if not await self._customer.put(index, pieces):
            self.rejected += 1
            file, chunk = self._customer.layout.place(index)
            name = self._customer.layout.manifest.files[file].name
            raise WrongBytesError(
                f"{self.name}: chunk {chunk} of '{name}' is not what the manifest says: the file "
                "was changed or damaged"
            )
        portion.next, portion.chunk_s = index + 1, self._clock()
