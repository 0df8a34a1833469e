"""Segments that loader threads (lanes) load while the first frames already run them.

Every segment has one loader, the first thread to claim it: a loader thread, or the executor that
needs it. The exception is a segment whose loader thread hangs: the executor loads it, too, and the
first result counts. Loader threads claim the first unclaimed segment. An executor that needs an
unclaimed segment loads it itself; one that needs a segment in work waits a moment, then loads the
next unclaimed ones meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from brisk.errors import (
    BriskError,
    InternalError,
    ShortageError,
    UnavailableError,
    is_shortage,
)
from brisk.segments.timeline import EventKind, Recorder, clock_ns

PATIENCE_S = 0.001
"""The time that an executor waits for a segment in work before it helps with others."""

RESCUE_S = 2.0
"""The time that an executor waits for one segment in work; then it loads that itself. Far above
what any segment takes: a loader thread that takes longer hangs, or yields on a machine without an
idle moment."""

RETRY_S = 0.1
"""The time for which a loader thread leaves alone what could not be had."""

EXECUTOR = "issue"

Segment = TypeVar("Segment")
"""A table's elements: segments, ready to run."""

BeforeEach: TypeAlias = "Callable[[SegmentTable[Any]], None]"


class SegmentTable(Generic[Segment]):
    """The segments of one program, and in ``recorder`` the timeline of its start. Thread-safe.

    Only the executor indexes the table: it gets the segment as soon as that is loaded, and loads
    it if it must. Indexing raises what loading raised.
    """

    def __init__(
        self,
        count: int,
        load: Callable[[int], Segment],
        is_here: Callable[[int], bool] = lambda index: True,
    ) -> None:
        """Make a table of ``count`` segments, none of which is loaded.

        ``load``: loads a segment by its number. ``is_here``: whether all bytes that ``load`` reads
        are here; else ``load`` waits, and raises UnavailableError if that takes too long: the
        segment is then unclaimed again.
        """
        self.recorder = Recorder()
        self._load = load
        self._is_here = is_here
        self._segments: list[Segment | None] = [None] * count
        self._claimed = bytearray(count)
        self._errors: dict[int, BriskError] = {}
        self._changed = threading.Condition()
        self._remaining = count
        self._told: list[Callable[[], None]] = []
        self._told_left: list[Callable[[], None]] = []
        self.lanes_at_work = 0
        self.executors_at_work = 0
        self.is_short = False
        """Whether a loader thread has stopped as memory or files were short: executors load what
        is left."""
        self.is_closed = False

    def __len__(self) -> int:
        return len(self._segments)

    def __getitem__(self, index: int) -> Segment:
        give_up_ns = clock_ns() + int(RESCUE_S * 1e9)
        while (segment := self._segments[index]) is None and index not in self._errors:
            if self._claim(index) is not None:
                self._perform_here(index)
            elif not self._wait_for(index):
                if (other := self._claim_here()) is not None:
                    self._perform_here(other)
                elif not self._is_here(index):  # its loader thread waits for bytes, too
                    give_up_ns = clock_ns() + int(RESCUE_S * 1e9)
                elif clock_ns() > give_up_ns:
                    self._perform_here(index)
        if segment is None:
            error = self._errors[index]
            # another one each time: an error keeps the frames of all calls that have raised it
            raise type(error)(str(error)) from error
        return segment

    def __iter__(self) -> Iterator[Segment]:
        return (self[index] for index in range(len(self)))

    def current(self) -> Sequence[Segment | None]:
        """Return the segments that a new frame runs; None: the frame indexes the table, which
        loads it.

        Loading replaces each None in place; ``switch`` does not change the result.
        """
        return self._segments

    @property
    def is_loading(self) -> bool:
        """Whether segments are left to load, and the table is not closed."""
        return self._remaining > 0 and not self.is_closed

    @property
    def is_left_to_lanes(self) -> bool:
        """Whether loader threads are at work, or to load what is left."""
        return self.lanes_at_work > 0 or (self.is_loading and not self.is_short)

    @property
    def is_left_to_executors(self) -> bool:
        """Whether segments are left that no loader thread loads, as memory or files were short."""
        return self.is_short and self.is_loading and not self.lanes_at_work

    @property
    def holds_executors(self) -> bool:
        """Whether an executor may be waiting for a loader thread, or is loading a segment."""
        return self.is_left_to_lanes or self.executors_at_work > 0

    @property
    def loaded(self) -> int:
        """The number of segments that are loaded, or have failed, by now."""
        return len(self._segments) - self._remaining

    @property
    def is_whole(self) -> bool:
        """Whether every segment is loaded and none has failed."""
        with self._changed:
            return not self._remaining and not self._errors

    def next_free(self) -> int | None:
        """Return the number of the first unclaimed segment; None: there is none."""
        index = self._claimed.find(0)
        return None if index < 0 else index

    def switch(self, segments: Mapping[int, Segment]) -> None:
        """Give frames that start from now on these segments; those that run keep theirs.

        Precondition: the table is whole.
        """
        if not self.is_whole:
            raise InternalError("segments are switched before they are loaded")
        self._segments = [
            segments.get(index, segment) for index, segment in enumerate(self._segments)
        ]
        self._load = _load_nothing  # releases the source of the first ones

    def work(self, name: str, before_each: BeforeEach | None = None) -> None:
        """Load segments in the calling thread, as ``name`` in the timeline, until none is left to
        claim, or memory or files are short.

        ``before_each`` is called with this table before each, and may block for a while.
        """
        with self._changed:
            self.lanes_at_work += 1
        while True:
            if before_each is not None:
                before_each(self)
            # Claimed after the wait: an executor that needs the segment meanwhile claims it.
            if self.is_closed or (index := self._claim()) is None:
                break
            try:
                self._perform(index, name)
            except ShortageError:
                self.is_short = True
                break
            except UnavailableError:  # later, then
                time.sleep(RETRY_S)  # no wait for a change: two threads would wake each other
        with self._changed:
            self.lanes_at_work -= 1
            if self.is_left_to_executors:
                for tell in self._told_left:
                    tell()

    def wait(self, timeout_s: float) -> bool:
        """Wait until every segment is loaded, or has failed; return False after the time-out."""
        with self._changed:
            return self._changed.wait_for(lambda: self._remaining == 0, timeout_s)

    def when_loaded(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` once every segment is loaded, or has failed.

        It is called at once, or in the thread that loads the last one, before any thread can run
        that. It must not block, or use the table.
        """
        with self._changed:
            if self._remaining == 0:
                tell()
            else:
                self._told.append(tell)

    def when_left(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` when the last loader thread at work leaves the rest to executors.

        It is called at once, or in that thread, and again if loader threads begin later. It must
        not block, or use the table.
        """
        with self._changed:
            self._told_left.append(tell)
            if self.is_left_to_executors:
                tell()

    def close(self) -> None:
        """Let no loader thread begin another segment; an executor still may."""
        self.is_closed = True

    def _claim(self, number: int | None = None) -> int | None:
        """Claim segment ``number``, or the first unclaimed one; return its number. None: it is not
        free."""
        with self._changed:
            index = self._claimed.find(0) if number is None else number
            if index < 0 or self._claimed[index]:
                return None
            self._claimed[index] = 1
            return index

    def _claim_here(self) -> int | None:
        """Claim the first unclaimed segment if all bytes for it are here; return its number, else
        None."""
        index = self.next_free()
        return None if index is None or not self._is_here(index) else self._claim(index)

    def _perform_here(self, index: int) -> None:
        """Load a claimed segment in an executor; raises what ``_perform`` does."""
        with self._changed:
            self.executors_at_work += 1
        try:
            self._perform(index, EXECUTOR)
        finally:
            with self._changed:
                self.executors_at_work -= 1

    def _perform(self, index: int, lane: str) -> None:
        """Load a claimed segment; store it, or the error that loading raised.

        Raises UnavailableError if the segment may be loaded later, ShortageError if memory or
        files are short.
        """
        segment: Segment | None = None
        error: BriskError | None = None
        started_ns = clock_ns()
        try:
            segment = self._load(index)
            self.recorder.add(lane, EventKind.CREATE, index, started_ns)
        except UnavailableError:
            self._unclaim(index)
            raise
        except Exception as raised:
            text = f"segment {index}: {type(raised).__name__}: {raised}"
            if is_shortage(raised):
                self._unclaim(index)
                raise ShortageError(f"{text}; to be tried again") from raised
            error = raised if isinstance(raised, BriskError) else InternalError(text)
        with self._changed:
            if self._segments[index] is not None or index in self._errors:
                return  # another thread has loaded it meanwhile
            self._remaining -= 1
            if self._remaining == 0:
                for tell in self._told:
                    tell()
                self._told.clear()
            self._segments[index] = segment
            if error is not None:
                self._errors[index] = error
            self._changed.notify_all()

    def _unclaim(self, index: int) -> None:
        """Let any thread claim the segment again, unless another one has loaded it meanwhile."""
        with self._changed:
            self._claimed[index] = self._segments[index] is not None
            self._changed.notify_all()

    def _wait_for(self, index: int) -> bool:
        started_ns = clock_ns()
        with self._changed:
            done = self._changed.wait_for(
                lambda: self._segments[index] is not None or index in self._errors, PATIENCE_S
            )
        self.recorder.add(EXECUTOR, EventKind.WAIT, index, started_ns)
        return done


def _load_nothing(index: int) -> Any:
    raise InternalError(f"segment {index} is loaded again")
