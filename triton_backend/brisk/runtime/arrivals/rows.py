"""Rows of tables that have not arrived as a whole: a request needs those that it asks for.

Half of a text encoder is a table of which a request reads one row for each of its tokens. They are
asked for when the request comes, before all else that is still on its way.
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
from brisk.runtime.arrivals.asking import CopyAsker
from brisk.segments.program import LoadedSegment

_LOOK_S = 0.002


class ArrivingTable(NamedTuple):
    """``place``: of the table in the copy's files. ``segment``: which reads it."""

    segment: int
    ids: str
    place: Range
    rows: int

    def chunks(self, ids: np.ndarray, chunk_bytes: int) -> np.ndarray:
        """Those of the file, in order, that the rows of these numbers lie in. A number that is
        none of a row has none: whoever computes with it is told so by the kernel."""
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
        """``is_over``: whether nobody needs the model any more. ``tell``: called when rows have
        come; ``stalled``: with the reason why none do."""
        self.tables = tuple(tables)
        self._copy = copy
        self._is_over = is_over
        self._tell = tell
        self._stalled = stalled
        self._is_whole = False
        self._asked: set[tuple[int, int]] = set()
        """Chunks that were asked for, by file and number."""
        self._lock = threading.Lock()
        self._wanted: queue.SimpleQueue[list[Range]] = queue.SimpleQueue()
        self._is_at_work = False

    @property
    def is_whole(self) -> bool:
        """Whether every row is here."""
        if not self._is_whole:
            places = (table.place for table in self.tables)
            self._is_whole = self._copy.is_here(self._copy.spans(places))
        return self._is_whole

    def are_here(self, values: Mapping[str, Any]) -> bool:
        """Whether all rows are that a run with these inputs reads; those that are not are asked
        for."""
        if self.is_whole:
            return True
        missing = list(self._missing(values))
        if missing:
            self._ask(missing)
        return not missing

    def guarded(self, index: int, segment: LoadedSegment) -> LoadedSegment:
        """A segment whose run waits for its rows: whoever started it sooner than it should have
        been gets a right answer all the same. The run raises UnavailableError where nobody needs
        it any more."""
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
        """Chunks that are not here, as bytes."""
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
        """Each once, by a thread of its own, which the first one starts."""
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
        """Ends when every row is here, or nobody needs the model any more."""
        asker = CopyAsker(self._copy)
        try:
            while (wanted := self._next()) is not None:
                if asker.wait(wanted, self._is_over, self._note, self._stalled):
                    self._tell()
        finally:
            with self._lock:
                self._is_at_work = False
            asker.close()
            self._tell()  # who asked last, when all came, is not told otherwise

    def _next(self) -> list[Range] | None:
        """All that was asked for meanwhile; None where nobody needs it."""
        while not self._is_over() and not self.is_whole:
            try:
                wanted = self._wanted.get(timeout=0.2)
            except queue.Empty:
                continue
            while not self._wanted.empty():
                wanted += self._wanted.get_nowait()
            return wanted
        return None

    def _note(self, progress: FetchProgress, is_further: bool) -> None:
        """The whole model's rate is told by who follows that."""
