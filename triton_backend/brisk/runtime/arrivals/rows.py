"""Rows of tables that are still arriving: a request waits only for the rows that it reads.

Half of a text encoder is a table of which a request reads one row for each of its tokens. These
rows are requested when the request comes, before all else that is still on its way.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from brisk.copies.courier import FetchProgress
from brisk.copies.local import LocalCopy
from brisk.copies.manifest import Range
from brisk.errors import UnavailableError
from brisk.runtime.arrivals.asking import CopyRequester
from brisk.segments.program import LoadedSegment

_LOOK_S = 0.002


class ArrivingTable(NamedTuple):
    """A table whose rows are requested one by one while it arrives.

    ``segment``: the index of the segment that reads it.
    ``ids``: the name of the tensor of row numbers.
    ``place``: the table's bytes in the copy's files.
    ``rows``: the number of its rows.
    """

    segment: int
    ids: str
    place: Range
    rows: int

    def chunks(self, ids: np.ndarray, chunk_bytes: int) -> np.ndarray:
        """Return the numbers of the file's chunks, ascending, that hold the rows ``ids``. A number
        outside the table has no chunk: the kernel that reads it reports the error."""
        numbers = np.unique(ids)
        numbers = np.where(numbers < 0, numbers + self.rows, numbers)
        numbers = numbers[(numbers >= 0) & (numbers < self.rows)]
        row_bytes = self.place.size // self.rows
        starts = self.place.offset + numbers.astype(np.int64) * row_bytes
        first, last = starts // chunk_bytes, (starts + row_bytes - 1) // chunk_bytes
        widest = int((last - first).max(initial=0)) + 1
        every = [np.minimum(first + step, last) for step in range(widest)]
        return np.unique(np.concatenate(every)) if every else first


class ArrivingRows:
    """The tables of one model that its segments are opened without. Thread-safe."""

    def __init__(
        self,
        copy: LocalCopy,
        tables: Sequence[ArrivingTable],
        is_over: Callable[[], bool],
        tell: Callable[[], None],
        stalled: Callable[[str], None],
    ) -> None:
        """``is_over``: returns whether the model is no longer needed. ``tell``: called when rows
        have come. ``stalled``: called with the reason why none come."""
        self.tables = tuple(tables)
        self._copy = copy
        self._is_over = is_over
        self._tell = tell
        self._stalled = stalled
        self._is_whole = False
        self._asked: set[tuple[int, int]] = set()
        """The requested chunks, by file and number."""
        self._lock = threading.Lock()
        self._wanted: queue.SimpleQueue[list[Range]] = queue.SimpleQueue()
        self._is_at_work = False

    @property
    def is_whole(self) -> bool:
        """Whether every row of every table is here."""
        if not self._is_whole:
            places = (table.place for table in self.tables)
            self._is_whole = self._copy.is_here(self._copy.spans(places))
        return self._is_whole

    def are_here(self, values: Mapping[str, Any]) -> bool:
        """Whether all rows that a run with these inputs reads are here; request the missing
        ones."""
        if self.is_whole:
            return True
        missing = list(self._missing(values))
        if missing:
            self._ask(missing)
        return not missing

    def guarded(self, index: int, segment: LoadedSegment) -> LoadedSegment:
        """Return ``segment`` with a run that waits for its rows, so that a run started too early
        is right all the same. The run raises UnavailableError if the model is unloaded
        meanwhile."""
        names = {table.ids for table in self.tables if table.segment == index}
        if not names:
            return segment

        def run(feeds: Mapping[str, Any], outputs: list[str], options: Any) -> Sequence[Any]:
            if not self._is_whole:
                self._wait({name: feeds[name] for name in names if name in feeds})
            return segment.run(feeds, outputs, options)

        return replace(segment, run=run)

    def _wait(self, feeds: Mapping[str, Any]) -> None:
        values = {
            name: value if isinstance(value, np.ndarray) else value.numpy()
            for name, value in feeds.items()
        }
        while not self.are_here(values):
            if self._is_over():
                raise UnavailableError("the model was unloaded while it arrived")
            time.sleep(_LOOK_S)

    def _missing(self, values: Mapping[str, Any]) -> Iterator[Range]:
        """Yield the byte ranges of the needed chunks that are not here."""
        manifest = self._copy.manifest
        for table in self.tables:
            ids = values.get(table.ids)
            if not isinstance(ids, np.ndarray) or ids.dtype.kind not in "iu":
                continue
            for chunk in table.chunks(ids, manifest.chunk_bytes).tolist():
                part = manifest.chunk_range(table.place.file, chunk)
                if not self._copy.is_here(self._copy.spans([part])):
                    yield part

    def _ask(self, parts: Sequence[Range]) -> None:
        """Request each part once, in a separate thread, which is started if none is at work."""
        with self._lock:
            fresh = [part for part in parts if (part.file, part.offset) not in self._asked]
            self._asked.update((part.file, part.offset) for part in fresh)
            if not fresh:
                return
            self._wanted.put(fresh)
            if self._is_at_work:
                return
            self._is_at_work = True
        threading.Thread(target=self._work, name="brisk-rows", daemon=True).start()

    def _work(self) -> None:
        """Fetch requested rows until every row is here or the model is no longer needed."""
        requester = CopyRequester(self._copy)
        try:
            while (wanted := self._next(requester)) is not None:
                if requester.wait(wanted, self._is_over, self._note, self._stalled):
                    self._tell()
        finally:
            with self._lock:
                self._is_at_work = False
            requester.close()
            self._tell()  # else the last request, made as the last rows came, would miss them

    def _next(self, requester: CopyRequester) -> list[Range] | None:
        """Return the parts requested meanwhile, blocking until there are some; None if every row
        is here or the model is no longer needed. Meanwhile ``requester`` is closed: a fetch that
        has failed would last as long as a connection to it, and never begin anew."""
        while not self._is_over() and not self.is_whole:
            try:
                wanted = self._wanted.get(timeout=0.2)
            except queue.Empty:
                requester.close()
                continue
            while not self._wanted.empty():
                wanted += self._wanted.get_nowait()
            return wanted
        return None

    def _note(self, progress: FetchProgress, is_further: bool) -> None:
        """Ignore progress: ``ModelArrival`` reports the rate for the whole model."""
