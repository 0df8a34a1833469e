"""Watches how long the threads of loads have been at work, so that no load goes on for ever.

ONNX Runtime cannot be asked to stop while it optimises a model: it checks no flag while it folds
constants. Requesters of a load that takes too long therefore get an error, and a thread that goes
on although its result is no longer wanted ends with its worker.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brisk.segments.table import SegmentTable

ABANDONED_S = 10.0
"""The longest that a thread may go on with work that is not needed: within it a valid load of
gigabytes notices that."""


@dataclass(slots=True, eq=False)
class Work:
    """A piece of work that is watched."""

    what: str
    """A description of the work."""
    begun_s: float
    is_wanted: Callable[[], bool]
    """Whether the work is needed."""
    is_over: Callable[[], bool] | None = None
    """Whether the work has ended; None: its end is reported."""
    give_up: Callable[[], None] | None = None
    """Called once, by the thread that watches, when the work has taken too long; None if no
    requester waits for the work."""
    model: Path | None = None
    """The model that the work is done for; None: it exchanges no sessions."""
    is_given_up: bool = False
    unwanted_since_s: float | None = None
    at_fault: Path | None = None
    """The model, if the work took too long while it was needed."""

    @property
    def complaint(self) -> str:
        """A text that says why the worker ends with this work."""
        return f"{self.what} has gone on for {ABANDONED_S:g} s although nobody waits for it"


class LoadWatch:
    """Watches work that threads report (``over``); the worker calls ``look`` once a second."""

    def __init__(self, longest_s: float, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Begin without work."""
        self.longest_s = longest_s
        """The time from which on work has taken too long."""
        self._clock_s = clock_s
        self._works: list[Work] = []

    @contextlib.contextmanager
    def over(
        self,
        what: str,
        is_wanted: Callable[[], bool],
        give_up: Callable[[], None] | None = None,
        model: Path | None = None,
    ) -> Iterator[None]:
        """Watch work of the calling thread while the context is open. Arguments as in ``Work``."""
        work = Work(what, self._clock_s(), is_wanted, None, give_up, model)
        self._works.append(work)
        try:
            yield
        finally:
            self._works.remove(work)

    def follow_lanes(self, model: Path, table: SegmentTable[Any]) -> None:
        """Watch the loader threads of a model's segments, which do not report."""
        self._works.append(
            Work(
                f"loading segments of {model}",
                self._clock_s(),
                lambda: not table.is_closed,
                lambda: not table.is_left_to_lanes,
                model=model,
            )
        )

    def look(self) -> Work | None:
        """Give up work that takes too long. Return work that goes on ABANDONED_S after it was
        given up or no longer needed, if any."""
        now_s = self._clock_s()
        for work in list(self._works):
            if work.is_over is not None and work.is_over():
                self._works.remove(work)
                continue
            is_too_long = now_s - work.begun_s >= self.longest_s
            if is_too_long and not work.is_given_up:
                work.is_given_up = True
                if work.unwanted_since_s is None and work.is_wanted():
                    work.at_fault = work.model
                if work.give_up is not None:
                    work.give_up()
            if work.is_wanted() and not is_too_long:
                work.unwanted_since_s = None
            elif work.unwanted_since_s is None:
                work.unwanted_since_s = now_s
            elif now_s - work.unwanted_since_s >= ABANDONED_S:
                return work
        return None
