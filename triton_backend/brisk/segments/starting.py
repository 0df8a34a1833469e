"""Starting a model: its segments load in lanes while whoever asks already runs it."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from brisk.os_priority import LOADING, lower_thread
from brisk.segments.program import InputCheck, Part, SegmentProgram, make_part, slots_of
from brisk.segments.session import OrtSession
from brisk.segments.source import SegmentPlan, Source
from brisk.segments.table import GiveWay, LayerTable
from brisk.segments.timeline import EventKind, Recorder, clock_ns


def usable_cores() -> int:
    return len(os.sched_getaffinity(0))


def lane_count(threads: int) -> int:
    """Loading lanes on a machine of so many cores: all but the executor's, at least one."""
    return max(threads - 1, 1)


def dealt(count: int, lanes: int) -> list[list[int]]:
    """Segments for each lane in turn."""
    return [list(range(lane, count, lanes)) for lane in range(lanes)]


class Lanes:
    """Threads that empty a table; they end by themselves. ``give_way`` as in its ``work``.

    ``around``: entered by each thread for as long as it lives.
    """

    def __init__(
        self,
        table: LayerTable[Any],
        count: int,
        give_way: GiveWay | None = None,
        around: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self._table = table
        self._give_way = give_way
        self._around = around
        self._threads = [
            threading.Thread(
                target=self._run, args=(lane,), name=f"brisk-load-{lane}", daemon=True
            )
            for lane in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Let the threads end after the segment each is at, and wait for that."""
        self._table.close()
        for thread in self._threads:
            thread.join()

    def _run(self, lane: int) -> None:
        lower_thread(LOADING)
        with self._around():
            self._table.work(lane, f"load-{lane}", self._give_way)


@dataclass(frozen=True, slots=True)
class StartingSegments:
    """A model that can run at once."""

    program: SegmentProgram
    source: Source
    recorder: Recorder

    @property
    def table(self) -> LayerTable[Part]:
        return self.program.parts

    def start_lanes(self, threads: int, give_way: GiveWay | None = None) -> Lanes:
        """Load all segments in the background, on all cores but the executor's."""
        return Lanes(self.table, lane_count(threads), give_way)

    def load_warm(self, may_go_on: Callable[[], bool]) -> bool:
        """Make every warm session, then give them all to new frames at once (PASK VI, NNV12 3.5).

        ``may_go_on`` is called before each and may block until there is time for it; False ends
        the work. Returns whether new frames have all of them. Raises BriskError where one cannot
        be made: new frames then have what the model started with.
        """
        is_done = self._exchange(self.source.open_warm, may_go_on)
        if is_done:
            self.source.close()
        return is_done

    def moved_to(self, source: Source, may_go_on: Callable[[], bool]) -> StartingSegments | None:
        """As ``load_warm``, with all sessions from another source of the same segments.

        What the model is from then on; None where it stays what it is.
        """
        is_done = self._exchange(partial(_open_fastest, source), may_go_on)
        return replace(self, source=source) if is_done else None

    def _exchange(
        self, open_one: Callable[[int], OrtSession | None], may_go_on: Callable[[], bool]
    ) -> bool:
        if not self.table.is_whole:
            return False
        made: dict[int, Part] = {}
        for spec in self.program.plan.segments:
            if not may_go_on():
                return False
            session = open_one(spec.index)
            if session is not None:
                made[spec.index] = make_part(spec, session, self.program.slots)
        if made:
            self.table.switch(made)
        return True


def start_segments(source: Source, threads: int, recorder: Recorder) -> StartingSegments:
    """No segment is loaded yet; lanes are to take them in turn."""
    program = _program(source.plan, source.open, threads, recorder)
    return StartingSegments(program, source, recorder)


def open_warm_program(source: Source, threads: int) -> SegmentProgram:
    """With all sessions of ``source`` that run fastest, where nobody waits for the first answer.

    Raises BriskError where one cannot be made.
    """
    program = _program(source.plan, partial(_open_fastest, source), threads, Recorder())
    _ = program.parts[:]  # loads them, or raises
    source.close()
    return program


def _open_fastest(source: Source, index: int) -> OrtSession:
    return source.open_warm(index) or source.open(index)


def _program(
    plan: SegmentPlan, open_one: Callable[[int], OrtSession], threads: int, recorder: Recorder
) -> SegmentProgram:
    slots = slots_of(plan)

    def load(index: int, lane: str, stolen: bool) -> Part:
        started_ns = clock_ns()
        part = make_part(plan.segments[index], open_one(index), slots)
        recorder.add(lane, EventKind.CREATE, index, started_ns, stolen)
        return part

    count = len(plan.segments)
    return SegmentProgram(
        plan,
        LayerTable(count, load, dealt(count, lane_count(threads)), recorder),
        slots,
        tuple(InputCheck(variable) for variable in plan.inputs),
        {variable.name: slots[variable.name] for variable in plan.outputs},
        all(variable.type.is_static for variable in plan.inputs),
    )


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Reading a model makes many thousand objects and hardly any that are let go again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
