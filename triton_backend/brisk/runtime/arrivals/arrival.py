"""Tracks which bytes of a copy a session's segments wait for, and when its requests may begin.

Loader threads open each segment, in order, as soon as its bytes are here, so a start ends soon
after the last byte. A run begins as late as it can without ending later: from then on each segment
is ready by the time the run reaches it. So a run occupies no processor while it would only wait
for bytes.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from brisk.copies.courier import STALLED_S, FetchProgress
from brisk.copies.local import LocalCopy, Spans
from brisk.copies.manifest import Range
from brisk.errors import InternalError, UnavailableError
from brisk.runtime.arrivals.asking import CopyRequester
from brisk.runtime.arrivals.rows import ArrivingRows, ArrivingTable
from brisk.runtime.log import LOGGER
from brisk.segments.program import LoadedSegment
from brisk.segments.source import FileBytes, Source
from brisk.segments.table import BeforeEach, SegmentTable

SHORTEST_LOOK_S, LONGEST_LOOK_S = 0.002, 0.1
"""The bounds of the time between two looks at whether a segment's bytes are here."""

NEW_S = 0.5
"""The time for which a model whose rate is unknown may be here at any moment: small ones are."""

FIRST_RUN = 5.0
"""The longest first run as a multiple of a warm one, on two processors: it touches weights for the
first time while others arrive. A run that begins too early waits in its step."""

_Tell = Callable[[], None]


def is_ripe(missing_bytes: Sequence[int], run_s: Sequence[float], bytes_per_s: float) -> bool:
    """Whether a run that begins now reaches no segment before its bytes are here.

    ``missing_bytes``: for each segment, in the order of arrival. ``run_s``: the run's seconds in
    each segment; a segment's bytes may arrive while the segments before it compute.
    """
    arrives_s = reached_s = 0.0
    for missing, run in zip(missing_bytes, run_s, strict=True):
        if missing:
            if bytes_per_s <= 0:
                return False
            arrives_s += missing / bytes_per_s
            if arrives_s > reached_s:
                return False
        reached_s += run
    return True


class ModelArrival:
    """The arrival of one session's files. Call ``expect``, then ``follow``.

    Loader threads wait by ``before_each`` before a segment; a separate thread asks the courier.
    """

    def __init__(self, copy: LocalCopy) -> None:
        """Connect to the courier. Raises BriskError if the copy cannot be fetched any more."""
        self.copy = copy
        self._began_s = time.monotonic()
        self._requester = CopyRequester(copy)
        self._requester.connect()
        self._rows: ArrivingRows | None = None
        self._needs: Sequence[Sequence[Range]] = ()
        """The ranges that opening each segment reads."""
        self._spans: Sequence[Spans] = ()
        self._every: Spans = ()
        """The chunks of all needed bytes."""
        self._run_s: Sequence[float] = ()
        self._bytes_per_s = 0.0
        self._lock = threading.Lock()
        self._on_whole: list[_Tell] = []
        self._on_change: list[_Tell] = []
        self._all_here = threading.Event()
        """Set when all needed bytes are here: loader threads then look at once."""
        self._make_ahead: Callable[[int], None] = lambda index: None
        self._opening = 0
        """The number of segments that are being opened."""
        self._tell_opening: Callable[[bool], None] = lambda is_opening: None
        self.is_ripe = False
        """Whether requests may begin to run, if their rows of tables are here."""
        self.problem: UnavailableError | None = None
        """The reason why nothing arrives, once that has lasted; else None."""
        self._is_whole = False
        self._is_closed: Callable[[], bool] = lambda: False

    def close(self) -> None:
        """Close the connection to the courier. Precondition: ``follow`` has not been called."""
        self._requester.close()

    @property
    def holds_requests(self) -> bool:
        """Whether some requests may have to wait: see ``may_begin``."""
        return not self.is_ripe or not (self._rows is None or self._rows.is_whole)

    def may_begin(self, inputs: Mapping[str, Any]) -> bool:
        """Whether a request with these inputs would wait for nothing. The missing table rows that
        it reads are requested now, before all else."""
        return (self._rows is None or self._rows.are_here(inputs)) and self.is_ripe

    def words(self) -> str:
        """Return the progress of the fetch as text; empty if everything is here."""
        if self._is_whole:
            return ""
        every = self.copy.all_of_it
        size = sum(part.size for part in every)
        missing = min(self.copy.missing_bytes(self.copy.spans(every)), size)
        needed = self.copy.missing_bytes(self._every)
        text = f"{(size - missing) / 1e6:.0f} of {size / 1e6:.0f} MB are here"
        if needed:
            text += f", {needed / 1e6:.1f} MB before it can run"
        if self.problem is not None:
            return f"{text}; {self.problem}"
        return f"{text}, {self._bytes_per_s / 1e6:.0f} MB/s"

    def take_form(self, name: str, *, is_begun: bool = False) -> Path | None:
        """Return the prepared form of this name, which arrives instead of raw weights. None if the
        weights come sooner, or no form was published; with ``is_begun`` also if the form is not on
        its way already. Raises BriskError."""
        if self.copy.manifest.form_named(name) is None:
            return None
        return self._requester.take(name, is_begun=is_begun)

    def expect(self, source: Source) -> None:
        """Note the bytes that ``source`` reads for each segment as those to wait for."""
        count = len(source.plan.segments)
        deferred = [self._deferred(source, index) for index in range(count)]
        tables = [table for each in deferred for table in each]
        self._needs = [self._needed(source, index, each) for index, each in enumerate(deferred)]
        if tables:
            self._rows = ArrivingRows(
                self.copy, tables, lambda: self._is_closed(), self._changed, self._stall
            )
        self._make_ahead = source.make_ahead
        self._spans = [self.copy.spans(parts) for parts in self._needs]
        self._every = self.copy.spans(part for parts in self._needs for part in parts)
        listed = self.copy.manifest.segments
        if len(listed) == count:
            self._run_s = [FIRST_RUN * segment.run_s for segment in listed]
        else:  # cut differently from the published model: the times are unknown
            self._run_s = [0.0] * count

    def follow(self, table: SegmentTable[Any]) -> None:
        """Fetch the expected bytes, then the rest of the model, as long as ``table`` is open."""
        self._is_closed = lambda: table.is_closed
        self._look()
        threading.Thread(target=self._work, name="brisk-arrival", daemon=True).start()

    def before_each(self, others: BeforeEach | None) -> BeforeEach:
        """Return a wait for loader threads: it blocks until the bytes of the next segment are here
        or the table is closed, and then calls ``others``."""

        def wait(table: SegmentTable[Any]) -> None:
            made: int | None = None
            while not table.is_closed:
                index = table.next_free()
                if index is None or self.is_here(index):
                    break
                if index != made:
                    self._make_ahead(index)
                    made = index
                    continue
                self._rest()
                self._look()
            if others is not None:
                others(table)

        return wait

    def is_here(self, index: int) -> bool:
        """Whether all bytes that opening the segment ``index`` reads are here."""
        return self.copy.is_here(self._spans[index])

    def wait_for(self, index: int) -> None:
        """Block until the segment ``index`` is here, for a run that reaches it unexpectedly early.

        Raises UnavailableError if nothing arrives any more, or the model is unloaded.
        """
        self._wait(self._spans[index])

    def guarded(self, index: int, segment: LoadedSegment) -> LoadedSegment:
        """Return ``segment`` with runs that wait for the table rows that they read."""
        return segment if self._rows is None else self._rows.guarded(index, segment)

    @contextlib.contextmanager
    def opening(self) -> Iterator[None]:
        """Open a context for opening one segment: see ``while_opening``."""
        self._count_opening(1)
        try:
            yield
        finally:
            self._count_opening(-1)

    def while_opening(self, tell: Callable[[bool], None]) -> None:
        """Call ``tell`` now and at each change with whether any segment is being opened."""
        with self._lock:
            self._tell_opening = tell
            tell(self._opening > 0)

    def _count_opening(self, change: int) -> None:
        with self._lock:
            before, self._opening = self._opening, self._opening + change
            if bool(before) is not bool(self._opening):
                self._tell_opening(self._opening > 0)

    def _wait(self, spans: Spans) -> None:
        while not self.copy.is_here(spans):
            if self._is_closed():
                raise UnavailableError("the model was unloaded while it arrived")
            if (problem := self.problem) is not None:  # which may pass while this looks at it
                raise UnavailableError(str(problem))
            self._rest()

    def when_whole(self, tell: _Tell) -> None:
        """Call ``tell`` once, in any thread, when all of the model's files are here."""
        with self._lock:
            if not self._is_whole:
                self._on_whole.append(tell)
                return
        tell()

    def when_changed(self, tell: _Tell) -> None:
        """Call ``tell`` now, and in any thread each time when requests may begin to run, rows that
        a request waits for have arrived, or nothing has arrived for long: see ``problem``."""
        self._on_change.append(tell)
        tell()

    def _range(self, part: FileBytes) -> Range:
        number = self.copy.number_of(part.path)
        if number is None:
            raise InternalError(f"{part.path} is no file of {self.copy.folder}")
        return Range(number, part.offset, part.size)

    def _needed(
        self, source: Source, index: int, deferred: Sequence[ArrivingTable]
    ) -> list[Range]:
        """Return the ranges that opening a segment reads. A table that it defers counts if it also
        reads the same bytes as something else, as another segment may."""
        parts = [self._range(part) for part in source.reads(index)]
        later = [table.place for table in deferred]
        return [part for part in parts if part not in later or parts.count(part) > 1]

    def _deferred(self, source: Source, index: int) -> list[ArrivingTable]:
        """Return the tables of a segment that opening it does not read."""
        found: list[ArrivingTable] = []
        places: list[Range] = []

        def wait() -> None:
            self._wait(self.copy.spans(places))

        for ids, place, rows in source.defer_tables(index, wait):
            places.append(self._range(place))
            found.append(ArrivingTable(index, ids, places[-1], rows))
        return found

    def _rest(self) -> None:
        """Sleep for ``_pause_s``, or until all that is needed is here."""
        if self._all_here.is_set():
            time.sleep(self._pause_s())
        else:
            self._all_here.wait(self._pause_s())

    def _pause_s(self) -> float:
        """Return the seconds until another look: a small part of the time that all needed bytes
        are likely to take."""
        if self._bytes_per_s <= 0:
            is_new = time.monotonic() - self._began_s < NEW_S
            return SHORTEST_LOOK_S if is_new else LONGEST_LOOK_S
        likely_s = self.copy.missing_bytes(self._every) / self._bytes_per_s
        return min(max(likely_s / 16, SHORTEST_LOOK_S), LONGEST_LOOK_S)

    def _look(self) -> None:
        """Let requests run if ``is_ripe`` allows it. Any thread."""
        if self.is_ripe:
            return
        missing = [self.copy.missing_bytes(spans) for spans in self._spans]
        if is_ripe(missing, self._run_s, self._bytes_per_s):
            self.is_ripe = True
            self._changed()

    # The thread that asks the courier.

    def _work(self) -> None:
        """Fetch needed bytes, tables, then the rest, until all is here or the table is closed."""
        parts = [part for need in self._needs for part in need]
        later = [table.place for table in self._rows.tables] if self._rows is not None else []
        try:
            for wanted in (parts, [*parts, *later], self.copy.all_of_it):
                if not self._requester.wait(wanted, self._is_closed, self._note, self._stall):
                    return
                self.problem = None
                self._all_here.set()
                self._look()
                time.sleep(SHORTEST_LOOK_S)  # threads that waited for the bytes go on first
        except Exception as error:  # noqa: BLE001  # requests wait; only this can report it
            LOGGER.error(f"{self.copy.folder}: {type(error).__name__}: {error}")
            self._stall(f"{type(error).__name__}: {error}")
            return
        finally:
            self._requester.close()
        with self._lock:
            self._is_whole = True
            told, self._on_whole = self._on_whole, []
        for tell in (*told, *self._on_change):
            tell()

    def _note(self, progress: FetchProgress, is_further: bool) -> None:
        self._bytes_per_s = progress.bytes_per_s
        if is_further:
            self.problem = None
        self._look()

    def _changed(self) -> None:
        for tell in self._on_change:
            tell()

    def _stall(self, problem: str) -> None:
        is_new = self.problem is None
        self.problem = UnavailableError(
            f"the model's bytes have not arrived for {STALLED_S:g} s: {problem or 'no source'}"
        )
        if is_new:
            LOGGER.warning(f"{self.copy.folder}: {self.problem}")
        self._changed()
