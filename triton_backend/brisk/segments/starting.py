"""Starting a model: loader threads load its segments while requests already run it."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from brisk.os_priority import LOADING, lower_thread
from brisk.segments.onnxruntime import OrtSession
from brisk.segments.program import (
    InputCheck,
    LoadedSegment,
    SegmentProgram,
    make_segment,
    slots_of,
)
from brisk.segments.source import SegmentPlan, Source
from brisk.segments.table import BeforeEach, SegmentTable


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def start_lanes(
    table: SegmentTable[Any], threads: int, before_each: BeforeEach | None = None
) -> list[threading.Thread]:
    """Load all of ``table`` in the background, in one thread fewer than ``threads``, at least one.

    Return the loader threads, which end by themselves. ``before_each``: see the table's ``work``.
    """

    def work(name: str) -> None:
        lower_thread(LOADING)
        table.work(name, before_each)

    names = [f"load-{lane}" for lane in range(max(threads - 1, 1))]
    lanes = [
        threading.Thread(target=work, args=(name,), name=f"brisk-{name}", daemon=True)
        for name in names
    ]
    for lane in lanes:
        lane.start()
    return lanes


@dataclass(frozen=True, slots=True)
class StartingSegments:
    """A model that can run at once, while its segments load."""

    program: SegmentProgram
    source: Source

    @property
    def table(self) -> SegmentTable[LoadedSegment]:
        return self.program.segments

    def load_warm(self, may_go_on: Callable[[], bool]) -> bool:
        """Make every warm session, then give them all to new frames at once (PASK VI, NNV12 3.5).

        ``may_go_on`` is called before each and may block until there is time for it; False ends
        the work. Return whether new frames have all of them. Raises BriskError if one cannot be
        made: new frames then have what the model started with.
        """
        is_done = self._exchange(self.source.open_warm, may_go_on)
        if is_done:
            self.source.close()
        return is_done

    def moved_to(self, source: Source, may_go_on: Callable[[], bool]) -> StartingSegments | None:
        """Exchange all sessions like ``load_warm``, from another source of the same segments.

        Return the model with that source; None: the sessions were not exchanged.
        """
        is_done = self._exchange(partial(_open_fastest, source), may_go_on)
        return replace(self, source=source) if is_done else None

    def _exchange(
        self, open_one: Callable[[int], OrtSession | None], may_go_on: Callable[[], bool]
    ) -> bool:
        if not self.table.is_whole:
            return False
        segments: dict[int, LoadedSegment] = {}
        for spec in self.program.plan.segments:
            if not may_go_on():
                return False
            session = open_one(spec.index)
            if session is not None:
                segments[spec.index] = make_segment(spec, session, self.program.slots)
        if segments:
            self.table.switch(segments)
        return True


def start_segments(source: Source, arriving: Arriving | None = None) -> StartingSegments:
    """Return a model of which no segment is loaded yet; loader threads are to load them in order.

    ``arriving``: given if what ``source`` reads may not be here yet.
    """
    return StartingSegments(_program(source.plan, source.open, arriving), source)


def open_warm_program(
    source: Source, open_one: Callable[[int], OrtSession] | None = None
) -> SegmentProgram:
    """Return a program of the fastest sessions of ``source``, for use if no request waits for a
    first answer.

    ``open_one``: opens other sessions instead. Raises BriskError if one cannot be made.
    """
    program = _program(source.plan, open_one or partial(_open_fastest, source))
    _ = list(program.segments)  # loads them, or raises
    source.close()
    return program


def _open_fastest(source: Source, index: int) -> OrtSession:
    return source.open_warm(index) or source.open(index)


class Arriving(Protocol):
    """The bytes that may have to arrive before a segment is opened."""

    def is_here(self, index: int) -> bool:
        """Whether all bytes that opening the segment reads are here."""

    def wait_for(self, index: int) -> None:
        """Wait until these bytes are here. Raises UnavailableError if nothing arrives any more."""

    def opening(self) -> AbstractContextManager[None]:
        """Return a context to enter while a segment is opened."""

    def guarded(self, index: int, segment: LoadedSegment) -> LoadedSegment:
        """Return the segment with runs that wait for the bytes that opening it did not read."""


def _program(
    plan: SegmentPlan, open_one: Callable[[int], OrtSession], arriving: Arriving | None = None
) -> SegmentProgram:
    slots = slots_of(plan)

    def load(index: int) -> LoadedSegment:
        if arriving is None:
            return make_segment(plan.segments[index], open_one(index), slots)
        arriving.wait_for(index)
        with arriving.opening():
            segment = make_segment(plan.segments[index], open_one(index), slots)
        return arriving.guarded(index, segment)

    return SegmentProgram(
        plan,
        SegmentTable(len(plan.segments), load, *() if arriving is None else (arriving.is_here,)),
        slots,
        tuple(InputCheck(variable) for variable in plan.inputs),
        {variable.name: slots[variable.name] for variable in plan.outputs},
        all(variable.type.is_static for variable in plan.inputs),
    )


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Suspend garbage collection: reading a model makes many thousand objects and frees hardly
    any."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
