"""One copy while it is fetched: which of its chunks are wanted, until all have arrived.

This module runs in one event loop; threads verify and write all but small chunks. ``supply``
decides which source is asked for which chunk.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from brisk.copies.courier import FetchProgress
from brisk.copies.local import path_in
from brisk.copies.manifest import Range
from brisk.errors import ArtefactError, BriskError, InvalidRequestError, UnavailableError
from brisk.sourcing.arriving import ArrivingCopy
from brisk.sourcing.completing import Completion
from brisk.sourcing.lanes import Bell
from brisk.sourcing.log import LOGGER
from brisk.sourcing.policies import wants
from brisk.sourcing.policies.patience import FORM_PATIENCE_S, RateMeter
from brisk.sourcing.policies.stretches import Stretch, bits_of, bits_of_all
from brisk.sourcing.policies.worth import expected_bytes_per_s, is_form_sooner

PROGRESS_S = 0.2
"""The interval at which waiters get the progress."""

_AT_ONCE_BYTES = 1 << 20
"""The largest chunk that the loop itself verifies and writes, unless a write was slow lately: 0.3
ms for 256 KiB, a third of what a thread would cost in addition."""

_SLOW_WRITE_S = 0.1
_SLOW_FOR_S = 1.0
"""The time for which threads write all chunks after a write took longer than ``_SLOW_WRITE_S``."""

_BEGUN_S = 1.0
"""The longest wait for a form's outline by a start that can do without the form."""

_QUIET_S = 1.0
"""The time without a new chunk after which the progress names the problem."""


class Awaited(NamedTuple):
    """Bytes that a caller of ``wait_for`` waits for, and the set of their chunks."""

    parts: tuple[Range, ...]
    bits: int
    come: Bell
    """Rung when all of these bytes are here, or can never arrive."""


class Fetch:
    """A copy that is being fetched. Call ``close`` before the copy is closed."""

    def __init__(
        self,
        copy: ArrivingCopy,
        executor: Executor,
        comparing: Executor,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``comparing``: for comparisons of whole files, which take long."""
        self.copy = copy
        self.layout = copy.layout
        self.here = copy.here()
        self.arrived = Bell()
        """Rung whenever a chunk has arrived."""
        self.wanted_anew = Bell()
        """Rung whenever the wanted chunks or their order may have changed."""
        self.forms: tuple[int, ...] = ()
        """The file numbers of the prepared forms to fetch, taken or guessed."""
        self.wanted: tuple[Stretch, ...] = ()
        self.wanted_bits = 0
        self.failure: BriskError | None = None
        """The reason why no more chunks can be kept; None if there is none."""
        self.meter = RateMeter()
        self.heard_s = clock()
        """When the last chunk arrived; at first, when the fetch began."""
        self._executor = executor
        self._clock = clock
        self._awaited: list[Awaited] = []
        self._outline: tuple[Range, ...] = ()
        self._behind = 0
        self._is_slow_until_s = 0.0
        self._rejected: dict[int, str] = {}
        """The prepared forms, by their files' numbers, that cannot be used, and why."""
        self.completion = Completion(copy, partial(self._in_thread, comparing), self.fail)
        self._guessed: int | None = None
        """The number of a prepared form that is fetched although no start has taken it yet."""
        self._is_decided = False
        """Whether some start has decided between a prepared form and the weights."""
        self._taking = asyncio.Lock()
        self._writes: set[asyncio.Future[Any]] = set()
        self._order()

    async def close(self) -> None:
        """Wait for the writes in progress. Precondition: ``put`` is not called any more."""
        self.completion.close()
        while self._writes:
            await asyncio.wait(self._writes)

    @property
    def has_head(self) -> bool:
        """Whether the bytes that describe the model (the file ``gathered``) are here."""
        return not bits_of(self.layout.file(self.copy.manifest.gathered)) & ~self.here

    @property
    def missing(self) -> int:
        """The set of the wanted chunks that have not arrived."""
        return self.wanted_bits & ~self.here

    @property
    def urgent(self) -> int:
        """The set of the missing chunks that a caller waits for, or that describe the model (the
        file ``gathered``)."""
        urgent = bits_of(self.layout.file(self.copy.manifest.gathered))
        for awaited in self._awaited:
            urgent |= awaited.bits
        return urgent & ~self.here

    @property
    def has_several_waiters(self) -> bool:
        return len(self._awaited) > 1

    def begin_with(self, head: bytes) -> None:
        """Keep bytes that arrived before their digests were known, and complete the copy if it
        was left when all of it had come.

        ``head``: bytes from the beginning of the file ``gathered``. Its leading chunks are kept as
        long as they match the manifest.
        """
        self.completion.note(self.here, self.forms)
        for index in range(*self.layout.file(self.copy.manifest.gathered)):
            part = self.layout.range_of(index)
            piece = head[part.offset : part.offset + part.size]
            if self.here >> index & 1 or len(piece) < part.size:
                return
            try:
                if not self.copy.put(index, [piece]):
                    return
            except OSError:  # the next write of it reports the error
                return
            self._note(index, 0)

    async def wait_for(
        self, parts: Sequence[Range], problem: Callable[[], str]
    ) -> AsyncGenerator[FetchProgress, None]:
        """Wait until all of these bytes have arrived; yield the progress each ``PROGRESS_S``.

        ``problem``: returns why nothing arrives. Raises InvalidRequestError if the manifest has no
        such bytes, ArtefactError if they are of a prepared form that cannot be used, ``failure``
        if nothing more can arrive, and InvalidModelError if the manifest was found to list other
        digests than the bytes have.
        """
        self.completion.check()
        bits = bits_of_all(map(self._stretch, parts))
        awaited = Awaited(tuple(parts), bits, Bell())
        if not bits & ~self.here:
            return
        if any(part.file in self.copy.manifest.own for part in parts):
            self._decide(None)
        self._awaited.append(awaited)
        self._behind = self._stretch(parts[-1]).end
        self._order()
        reported_s = self._clock()
        try:
            while bits & ~self.here:
                if self.failure is not None:
                    raise self.failure
                if rejected := next((each for each in parts if each.file in self._rejected), None):
                    raise ArtefactError(self._rejected[rejected.file])
                left_s = reported_s + PROGRESS_S - self._clock()
                if left_s > 0:
                    await awaited.come.wait(left_s)
                    continue
                reported_s = self._clock()
                yield self.progress(bits, problem)
        finally:
            self._awaited.remove(awaited)
            self._order()

    async def wait_until_whole(self) -> AsyncGenerator[FetchProgress, None]:
        """Wait until the copy is whole, as ``Completion.wait`` does; yield the progress."""
        async for _ in self.completion.wait(PROGRESS_S):
            yield self.progress(self.layout.own, str)

    def progress(self, bits: int, problem: Callable[[], str]) -> FetchProgress:
        """Return the progress of a set of chunks, with ``problem`` if no byte arrived lately."""
        now_s = self._clock()
        is_quiet = now_s - self.heard_s > _QUIET_S
        missing_bytes = self.layout.size_of(bits & ~self.here)
        return FetchProgress(missing_bytes, self.meter.rate(now_s), problem() if is_quiet else "")

    def fail(self, error: BriskError) -> None:
        """Report to all waiters that no chunk can be kept any more."""
        if self.failure is None:
            LOGGER.warning(f"{self.copy.folder.name[:16]}: {error}")
        self.failure = error
        for awaited in self._awaited:
            awaited.come.ring()

    async def take_begun(self, name: str) -> Path | None:
        """Return the same as ``take``, for a caller that can do without the form: also None if
        it is not being fetched, or its outline does not arrive soon."""
        if self.copy.manifest.form_named(name) not in self.forms:
            return None
        with contextlib.suppress(asyncio.TimeoutError):
            return await asyncio.wait_for(self.take(name, 0.0), _BEGUN_S)
        return None

    async def take(
        self, name: str, best_rate: float, is_hopeless: Callable[[], bool] = lambda: False
    ) -> Path | None:
        """Return the path of the prepared form of this name, once the bytes that say where its
        parts lie have arrived.

        None if there is no such form, it is unusable or does not come, or weights come sooner.
        ``best_rate``: the best rate ever seen from the sources, in bytes/s; 0 if unknown.
        ``is_hopeless``: whether no source is left.
        """
        number = self.copy.manifest.form_named(name)
        self.completion.check()
        async with self._taking:
            self._decide(number)
            if number is None or number in self._rejected:
                return None
            if number not in self.forms and not await self._begin(number, best_rate):
                return None
        self.completion.note(self.here, self.forms)
        try:
            while True:
                self._outline = self.copy.outline(number)
                await self._wait_for_outline(number, is_hopeless)
                if len(self._outline) > 1:
                    return path_in(self.copy.folder, self.copy.manifest, number)
        except ArtefactError as error:
            self.reject_form(number, str(error))
            return None

    async def _wait_for_outline(self, number: int, is_hopeless: Callable[[], bool]) -> None:
        """Wait for the outline. Raises ArtefactError if it does not come."""
        file = self.copy.manifest.files[number]
        least, since_s = file.size + 1, self._clock()
        async with contextlib.aclosing(self.wait_for(self._outline, str)) as waiting:
            async for progress in waiting:
                if progress.missing_bytes < least:
                    least, since_s = progress.missing_bytes, self._clock()
                elif is_hopeless() or self._clock() - since_s > FORM_PATIENCE_S:
                    raise ArtefactError(f"'{file.name}' does not come")

    def reject_form(self, number: int, problem: str) -> None:
        """Fetch a prepared form no more, since it is missing or damaged; who waits for its bytes
        gets an ArtefactError."""
        if number not in self._rejected:
            LOGGER.warning(f"a prepared form is left for weights: {problem}")
        self._rejected[number] = problem
        self._leave_form(number)
        for awaited in self._awaited:
            awaited.come.ring()

    async def guess(
        self, name: str, best_rate: float, decided: Callable[[], None] = lambda: None
    ) -> None:
        """Fetch the prepared form of this name, if it comes sooner than weights, until a start
        takes another form or waits for weights. So the link is not idle while a start decides.

        ``decided``: called once it is known whether the form is fetched.
        """
        number = self.copy.manifest.form_named(name)
        try:
            async with self._taking:
                if number is None or self._is_decided or not await self._begin(number, best_rate):
                    return
                if self._is_decided:  # meanwhile
                    self._leave_form(number)
                    return
                self._guessed = number
        finally:
            decided()
        try:
            while self._guessed == number and len(self._outline) < 2:
                outline = self.copy.outline(number)
                if outline != self._outline:
                    self._outline = outline
                    self._order()
                else:
                    await asyncio.shield(self.arrived.rung())
        except ArtefactError as error:
            self.reject_form(number, str(error))

    def _decide(self, form: int | None) -> None:
        """Note that a start wants this form, or weights if None; stop fetching another form that
        was guessed."""
        guessed, self._guessed, self._is_decided = self._guessed, None, True
        if guessed is not None and guessed != form:
            self._leave_form(guessed)

    def _leave_form(self, number: int) -> None:
        self._guessed = None if self._guessed == number else self._guessed
        self.forms = tuple(each for each in self.forms if each != number)
        self._outline = ()
        self._order()

    async def _begin(self, number: int, best_rate: float) -> bool:
        file, here = self.copy.manifest.files[number], self.here
        form_bytes = self.layout.size_of(bits_of(self.layout.file(number)) & ~here)
        raw_bytes = self.layout.size_of(self.layout.own & ~here)
        rate = expected_bytes_per_s(self.meter.rate(self._clock()), best_rate)
        if not is_form_sooner(form_bytes, raw_bytes, rate):
            return False
        try:
            await self._in_thread(self._executor, self.copy.reserve_form, number)
        except OSError as error:
            LOGGER.warning(f"'{file.name}' is not fetched: {form_bytes} bytes: {error.strerror}")
            return False
        self.forms = (*self.forms, number)
        self._order()
        return True

    async def put(self, index: int, pieces: list[bytes | memoryview]) -> bool:
        """Write a chunk, given in ``pieces``. Return False if it has another digest.

        Raises UnavailableError if it cannot be written.
        """
        if self.here >> index & 1:
            return True
        size = self.layout.range_of(index).size
        began_s = self._clock()
        try:
            if size <= _AT_ONCE_BYTES and began_s >= self._is_slow_until_s:
                is_right = self.copy.put(index, pieces)
                if self._clock() - began_s > _SLOW_WRITE_S:
                    self._is_slow_until_s = began_s + _SLOW_FOR_S
                if is_right:
                    self._note(index, size)
                return is_right
            written = self._in_thread(self._executor, self.copy.put, index, pieces)
            written.add_done_callback(lambda done: self._note_later(index, size, done))
            return bool(await asyncio.shield(written))
        except OSError as error:
            raise UnavailableError(
                f"{self.copy.folder}: cannot be written: {error.strerror}"
            ) from error

    def _in_thread(
        self, executor: Executor, function: Callable[..., Any], *arguments: Any
    ) -> asyncio.Future[Any]:
        future = asyncio.get_running_loop().run_in_executor(executor, function, *arguments)
        self._writes.add(future)
        future.add_done_callback(self._writes.discard)
        return future

    def _note_later(self, index: int, size: int, written: asyncio.Future[Any]) -> None:
        if not written.cancelled() and written.exception() is None and written.result():
            self._note(index, size)

    def _note(self, index: int, size: int) -> None:
        """Note a chunk that was written: wake its waiters, and publish what it completes."""
        self.here |= 1 << index
        if self.layout.place(index)[0] == self.copy.manifest.gathered:
            with contextlib.suppress(OSError):  # then the sources send these chunks
                self.here |= self.copy.note_covered()
        self.heard_s = self._clock()
        self.meter.add(size, self.heard_s)
        self.arrived.ring()
        for awaited in self._awaited:
            if not awaited.bits & ~self.here:
                awaited.come.ring()
        self.completion.note(self.here, self.forms)

    def _stretch(self, part: Range) -> Stretch:
        """Return the chunks of these bytes. Raises InvalidRequestError if the manifest has no
        such bytes."""
        files = self.copy.manifest.files
        if not part.file < len(files) or part.offset + part.size > files[part.file].size:
            raise InvalidRequestError(f"the manifest has no bytes {part}")
        return self.layout.stretch(part)

    def _order(self) -> None:
        """Recompute which chunks are wanted, and in which order."""
        fewest_first = sorted(self._awaited, key=lambda awaited: awaited.bits.bit_count())
        parts = [part for awaited in fewest_first for part in awaited.parts]
        self.wanted = wants.order(self.layout, parts, self.forms, self._outline, self._behind)
        self.wanted_bits = bits_of_all(self.wanted)
        self.wanted_anew.ring()
