"""One task's client: an asyncio coroutine that sends requests when its load requires.

The choice of the arrival to send next, and of those to drop, is DISB's (its ``load.cpp``).
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from brisk_client.workload.description import (
    Continuous,
    Dependent,
    Load,
    Periodic,
    Poisson,
    Task,
    Trace,
    Workload,
)
from brisk_client.workload.results import OK, UNFINISHED, Row

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0
"""The pause of a closed loop after an error, doubled with each further one, and its maximum."""

MOST_WAITING = 1024
"""The most launches that wait in a dependent task; beyond that the oldest is dropped."""

Ask = Callable[[], Awaitable[str]]
"""Sends the task's request and returns ``Row.status``; raises on cancellation only."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A request to send at ``scheduled_ns``, or now if that is over.

    ``dropped_ns``: the due times of the stale arrivals before it.
    """

    scheduled_ns: int
    dropped_ns: tuple[int, ...] = ()


class Pacer:
    """Turns ``arrivals`` (times of the caller's clock, ascending) up to ``end_ns`` into launches.

    An arrival that is due is stale when the one after it is due as well. The newest due one is
    never stale: it is sent late, and its latency counts from when it was due.
    """

    def __init__(self, arrivals: Iterator[int], end_ns: int, drops_stale: bool) -> None:
        self._arrivals = arrivals
        self._end_ns = end_ns
        self._drops_stale = drops_stale
        self._following = next(arrivals, None)

    def next(self, now_ns: int) -> Launch | None:
        """Return the next launch for a client that is free at ``now_ns``; None if there are no
        more."""
        dropped_ns: list[int] = []
        chosen = self._following
        if chosen is None:
            return None
        self._following = next(self._arrivals, None)
        latest_ns = min(now_ns, self._end_ns)  # what is due after the end makes nothing stale
        while self._drops_stale and self._following is not None and self._following < latest_ns:
            dropped_ns.append(chosen)
            chosen = self._following
            self._following = next(self._arrivals, None)
        if chosen >= self._end_ns:
            self._following = None
            return None
        return Launch(chosen, tuple(dropped_ns))

    def left(self) -> list[int]:
        """Take out and return the due times of all arrivals that ``next`` has not returned."""
        found = []
        while self._following is not None and self._following < self._end_ns:
            found.append(self._following)
            self._following = next(self._arrivals, None)
        self._following = None
        return found


def arrivals_ns(load: Load, generator: random.Random) -> Iterator[int] | None:
    """Return an open-loop load's sending times from the start, ascending; only a trace's end.

    None for a load whose sending times depend on answers.
    """
    if isinstance(load, Periodic):
        phase_s, frequency_hz = load.phase_s or 0.0, load.frequency_hz
        return (round((phase_s + number / frequency_hz) * 1e9) for number in itertools.count())
    if isinstance(load, Poisson):
        gaps_s = (generator.expovariate(load.frequency_hz) for _ in itertools.count())
        return (round(arrival_s * 1e9) for arrival_s in itertools.accumulate(gaps_s))
    if isinstance(load, Trace):
        return (round(arrival_s * 1e9) for arrival_s in load.arrivals_s)
    return None


@dataclass(slots=True)
class Predecessors:
    """The answers that a dependent task waits for, by number and task.

    ``names``: the tasks that it depends on.
    ``answered``: the tasks that have an answer, by the answer's number.
    ``ready``: when its waiting launches became due.
    ``dropped_ns``: when launches that were dropped became due.
    ``arrived``: set when a launch becomes ready.
    """

    names: tuple[str, ...]
    answered: dict[int, set[str]] = field(default_factory=dict)
    ready: deque[int] = field(default_factory=deque)
    dropped_ns: list[int] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, name: str, serial: int, now_ns: int) -> None:
        """Note the answer ``serial`` of the task ``name``. When all tasks have it, a launch is
        ready, and older answers are forgotten."""
        names = self.answered.setdefault(serial, set())
        names.add(name)
        if len(names) == len(self.names):
            for older in [each for each in self.answered if each <= serial]:
                del self.answered[older]
            self.ready.append(now_ns)
            self.arrived.set()
        if len(self.ready) > MOST_WAITING:
            self.dropped_ns.append(self.ready.popleft())
        while len(self.answered) > MOST_WAITING:
            del self.answered[min(self.answered)]


class TaskClient:
    """Sends a task's requests, at most ``in_flight`` at once, and emits a row for each.

    ``begin_s``: the run's start, a time of the event loop. Used in one loop.
    """

    def __init__(
        self, workload: Workload, task: Task, ask: Ask, emit: Callable[[Row], None], begin_s: float
    ) -> None:
        self.task = task
        self.followers: list[Predecessors] = []
        self.predecessors: Predecessors | None = None
        if isinstance(task.load, Dependent):
            self.predecessors = Predecessors(task.load.previous)
        self._end_ns = round(workload.duration_s * 1e9)
        # Arrivals of a task do not depend on the other tasks.
        arrivals = arrivals_ns(task.load, random.Random(f"{workload.seed} {task.name}"))
        self._pacer = None
        if arrivals is not None:
            self._pacer = Pacer(arrivals, self._end_ns, task.drops_stale)
        self._ask = ask
        self._emit = emit
        self._begin_s = begin_s
        self._serials = itertools.count()
        self._answers = 0
        self._pause_s = FIRST_PAUSE_S

    async def run(self) -> None:
        """Send requests until the workload's time is over and the last request has ended.

        If cancelled, end as ``unfinished`` all requests in flight and those that were never sent,
        and return.
        """
        slots = asyncio.Semaphore(self.task.in_flight)
        requests: set[asyncio.Task[None]] = set()
        try:
            await self._sleep_until(0)
            while (launch := await self._next(slots)) is not None:
                request = asyncio.create_task(self._request(*launch, slots))
                requests.add(request)
                request.add_done_callback(requests.discard)
            await asyncio.gather(*requests)
        except asyncio.CancelledError:
            for request in requests:
                request.cancel()
            await asyncio.gather(*requests, return_exceptions=True)
            for due_ns in self._pacer.left() if self._pacer is not None else ():
                now_ns = self._now_ns()
                self._tell(Launch(due_ns), next(self._serials), now_ns, now_ns, UNFINISHED)

    async def _next(self, slots: asyncio.Semaphore) -> tuple[Launch, int] | None:
        """Wait for a free slot and the next launch; return it, and since when the slot was free.

        None if there are no more launches.
        """
        await slots.acquire()
        free_ns = self._now_ns()
        load = self.task.load
        if isinstance(load, Continuous):
            launch = Launch(free_ns) if free_ns < self._end_ns else None
        elif self.predecessors is not None:
            launch = await self._next_dependent(self.predecessors)
        else:
            assert self._pacer is not None
            launch = self._pacer.next(free_ns)
        if launch is not None:
            await self._sleep_until(launch.scheduled_ns)
            return launch, free_ns
        return None

    async def _next_dependent(self, predecessors: Predecessors) -> Launch | None:
        while not predecessors.ready:
            predecessors.arrived.clear()
            left_s = (self._end_ns - self._now_ns()) / 1e9
            try:
                await asyncio.wait_for(predecessors.arrived.wait(), max(0.0, left_s))
            except asyncio.TimeoutError:
                return None
        dropped_ns, predecessors.dropped_ns = tuple(predecessors.dropped_ns), []
        return Launch(predecessors.ready.popleft(), dropped_ns)

    async def _request(self, launch: Launch, free_ns: int, slots: asyncio.Semaphore) -> None:
        serial, sent_ns = next(self._serials), self._now_ns()
        status = UNFINISHED
        try:
            status = await self._ask()
        finally:
            row = self._tell(launch, serial, free_ns, sent_ns, status)
        if status == OK:
            self._pause_s = FIRST_PAUSE_S
            for follower in self.followers:
                follower.take(self.task.name, self._answers, row.done_ns)
            self._answers += 1
        elif isinstance(self.task.load, Continuous):
            await asyncio.sleep(self._pause_s)
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        slots.release()

    def _tell(self, launch: Launch, serial: int, free_ns: int, sent_ns: int, status: str) -> Row:
        """Emit and return the row of a request that has ended now."""
        row = Row(
            task=self.task.name,
            job_class=self.task.job_class or "",
            model=self.task.model,
            serial=serial,
            scheduled_ns=launch.scheduled_ns,
            free_ns=free_ns,
            sent_ns=sent_ns,
            done_ns=self._now_ns(),
            status=status,
            dropped_ns=launch.dropped_ns,
        )
        self._emit(row)
        return row

    def _now_ns(self) -> int:
        return round((asyncio.get_running_loop().time() - self._begin_s) * 1e9)

    async def _sleep_until(self, time_ns: int) -> None:
        """Sleep until ``time_ns`` or just after it; return at once if it is over."""
        while (left_ns := time_ns - self._now_ns()) > 0:
            await asyncio.sleep(left_ns / 1e9)
