"""Segments that are loaded by lanes while the first frames already run them.

Every segment has one loader, the first to claim it: a lane, or the executor that needs it. The
exception is a segment whose lane does not come back: the executor loads it, too, and the first
result counts. Lanes take the first segment that nobody has begun. An executor that meets such a
segment loads it itself; one that meets a segment in work waits a moment, then loads the next free
ones meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from brisk.errors import BriskError, InternalError, UnavailableError
from brisk.segments.timeline import EventKind, Recorder, clock_ns

PATIENCE_S = 0.001
"""How long an executor waits for a segment in work before it helps with others."""

RESCUE_S = 2.0
"""How long an executor waits for one segment in work; then it loads that itself. Far above what
any segment takes: a lane that takes longer hangs, or stands back on a machine without an idle
moment."""

EXECUTOR = "issue"

Segment = TypeVar("Segment")
"""A table's elements: segments, ready to run."""

GiveWay: TypeAlias = "Callable[[SegmentTable[Any]], None]"


class SegmentTable(Generic[Segment]):
    """The segments of one program, and in ``recorder`` the timeline of its start. Thread-safe.

    Indexing is the executor's: it returns the segment as soon as it is loaded, and loads it if it
    must. Raises what loading raised.
    """

    def __init__(
        self,
        count: int,
        load: Callable[[int], Segment],
        is_here: Callable[[int], bool] = lambda index: True,
    ) -> None:
        """Make a table of ``count`` segments, of which none is loaded.

        ``load``: loads a segment by its number. ``is_here``: whether all that this reads is here;
        else it waits, and raises UnavailableError if that takes too long: the segment is then as
        if nobody had begun it.
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
        self.lanes_at_work = 0
        self.is_closed = False

    def __len__(self) -> int:
        return len(self._segments)

    def __getitem__(self, index: int) -> Segment:
        give_up_ns = clock_ns() + int(RESCUE_S * 1e9)
        while (segment := self._segments[index]) is None and index not in self._errors:
            if self._claim(index) is not None:
                self._perform(index, EXECUTOR)
            elif not self._wait_for(index):
                if (other := self._claim_here()) is not None:
                    self._perform(other, EXECUTOR)
                elif not self._is_here(index):  # its lane waits for bytes, too
                    give_up_ns = clock_ns() + int(RESCUE_S * 1e9)
                elif clock_ns() > give_up_ns:
                    self._perform(index, EXECUTOR)
        if segment is None:
            raise self._errors[index]
        return segment

    def __iter__(self) -> Iterator[Segment]:
        return (self[index] for index in range(len(self)))

    def current(self) -> Sequence[Segment | None]:
        """Return what a new frame runs: segments; None: it must ask the table, which loads it.

        Loading fills the gaps; a switch leaves it as it is.
        """
        return self._segments

    @property
    def is_loading(self) -> bool:
        """Whether a lane still has, or may take, work."""
        return self._remaining > 0 and not self.is_closed

    @property
    def loaded(self) -> int:
        """How many segments are loaded by now."""
        return len(self._segments) - self._remaining

    @property
    def is_whole(self) -> bool:
        """Whether every segment is loaded and none has failed."""
        with self._changed:
            return not self._remaining and not self._errors

    def next_free(self) -> int | None:
        """Return the first segment that nobody has begun; None: there is none."""
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
        self._load = _load_nothing  # lets go of what the first ones came from

    def work(self, name: str, give_way: GiveWay | None = None) -> None:
        """Load segments in the calling thread, the lane ``name``, until none is left to claim.

        ``give_way`` is called with this table before each, and may block for a while.
        """
        with self._changed:
            self.lanes_at_work += 1
        while True:
            if give_way is not None:
                give_way(self)
            # Claimed behind the wait: an executor that needs the segment meanwhile takes it.
            if self.is_closed or (index := self._claim()) is None:
                break
            with contextlib.suppress(UnavailableError):  # later, then
                self._perform(index, name)
        with self._changed:
            self.lanes_at_work -= 1

    def wait(self, timeout_s: float) -> bool:
        """Wait until every segment is loaded, or has failed; False after the time-out."""
        with self._changed:
            return self._changed.wait_for(lambda: self._remaining == 0, timeout_s)

    def when_loaded(self, tell: Callable[[], None]) -> None:
        """Call ``tell`` once every segment is loaded, or has failed.

        It is called at once, or in the thread that loads the last one, before anybody can run
        that. It must not block, or use the table.
        """
        with self._changed:
            if self._remaining == 0:
                tell()
            else:
                self._told.append(tell)

    def close(self) -> None:
        """Let no lane begin another segment; an executor still may."""
        self.is_closed = True

    def _claim(self, number: int | None = None) -> int | None:
        """Claim segment ``number``, or the first that nobody has begun; None: it is not free."""
        with self._changed:
            index = self._claimed.find(0) if number is None else number
            if index < 0 or self._claimed[index]:
                return None
            self._claimed[index] = 1
            return index

    def _claim_here(self) -> int | None:
        """Claim the first segment that nobody has begun, if loading it waits for nothing."""
        index = self.next_free()
        return None if index is None or not self._is_here(index) else self._claim(index)

    def _perform(self, index: int, lane: str) -> None:
        """Load a claimed segment and publish it, or what it raised.

        Raises UnavailableError if it may be had later.
        """
        segment: Segment | None = None
        error: BriskError | None = None
        started_ns = clock_ns()
        try:
            segment = self._load(index)
            self.recorder.add(lane, EventKind.CREATE, index, started_ns)
        except UnavailableError:
            with self._changed:
                self._claimed[index] = self._segments[index] is not None
                self._changed.notify_all()
            raise
        except BriskError as raised:
            error = raised
        except Exception as raised:  # noqa: BLE001  # whoever needs the segment must learn of it
            error = InternalError(f"segment {index}: {type(raised).__name__}: {raised}")
        with self._changed:
            if self._segments[index] is not None or index in self._errors:
                return  # it was rescued, or the other way round
            self._remaining -= 1
            if self._remaining == 0:
                for tell in self._told:
                    tell()
                self._told.clear()
            self._segments[index] = segment
            if error is not None:
                self._errors[index] = error
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
