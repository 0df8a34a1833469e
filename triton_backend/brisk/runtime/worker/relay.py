"""The threads of a worker of which one leads: when a step takes long, another one may go on.

A step is computed by ONNX Runtime, which cannot be asked to wait. While it computes, its thread
has given the *baton* away, and a *follower* looks from time to time whether it has taken long. If
so, the follower takes the baton, hears what has come, ends a run that nobody waits for any more,
and leads from now on where somebody else should not wait for the step. The thread of that step
finds out when the step is over, leaves what has become of it to the leader, and ends: it may have
become nicer meanwhile, and there is no way back up for every user.

All that a worker holds belongs to whoever holds the baton. There are as many threads as steps that
were left behind, one that leads, and one that follows.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from brisk.os_priority import computed_ns
from brisk.runtime.requests.batch import Run
from brisk.segments.frame import RunControl, control

LOOK_S = 0.02
"""Between two looks at the step under way."""

LONG_NS = 30_000_000
"""From then on a step takes long: others are heard meanwhile."""

_QUIET_LOOKS = 50
"""Looks that found no step, until the follower waits to be woken."""


@dataclass(slots=True, eq=False)
class Step:
    """A step of ``run`` that is computed. ``is_aside``: another thread leads meanwhile.

    When it is over: ``is_last`` of the run's steps, or the ``error`` that it ended with.
    ``ended_ns``: when it was told to end, None where it was not; ``computed_ns``: the processor
    time of its thread then. ``thread``: the number that the system gives the thread which computes
    it; ``helpers``: those of threads that stand aside with it. ``is_stalled``: it stands aside,
    and does not end when it should.
    """

    run: Run
    began_ns: int
    thread: int = 0
    helpers: frozenset[int] = frozenset()
    control: RunControl = field(default_factory=control)
    is_aside: bool = False
    is_stalled: bool = False
    ended_ns: int | None = None
    computed_ns: int = 0
    is_last: bool = False
    error: Exception | None = None

    def end(self, now_ns: int) -> None:
        """Precondition: it is under way, and the caller holds the baton."""
        if self.ended_ns is None:
            self.ended_ns = now_ns
            self.computed_ns = computed_ns(self.thread)
            self.control.end()


class Superseded(BaseException):
    """Another thread leads since the step that has just ended."""


class Relay:
    """Threads that take turns at leading. ``returned``: steps that were left behind and are over,
    for the leader to take out. ``threads``: those that lead and follow, and companions
    (``SideBySide``), as the system numbers them."""

    def __init__(
        self,
        take_turn: Callable[[], bool],
        attend: Callable[[Step], bool],
        *,
        may_hand_over: bool = True,
    ) -> None:
        """``take_turn``: what the leader does again and again, until it says False. ``attend``:
        called by a follower, with the baton, while a step takes long; True: it leads from now on.
        ``may_hand_over`` False: nobody follows.
        """
        self._may_hand_over = may_hand_over
        self._take_turn = take_turn
        self._attend = attend
        self.baton = threading.Lock()
        """For others than the leader and those that follow it: theirs while they hold it."""
        self._current: Step | None = None
        self._is_busy = threading.Event()
        self._has_ended = threading.Event()
        self._followers = 0  # changed by who has the baton
        self._leader = threading.get_native_id()  # by who takes it
        self.threads = {self._leader}
        self.returned: deque[Step] = deque()

    def lead(self) -> None:
        """Until a turn says that it was the last one, whichever thread takes it."""
        self.baton.acquire()
        self._leader = threading.get_native_id()
        self.threads = {self._leader}
        if self._may_hand_over:
            self._add_follower()
        self._take_turns()
        self._has_ended.wait()

    def begin(self, step: Step) -> None:
        """The leader, before it computes: it has the baton no more until ``finish``."""
        step.thread = self._leader
        self._current = step
        if not self._is_busy.is_set():
            self._is_busy.set()
        self.baton.release()

    def finish(self, step: Step) -> None:
        """Raises Superseded where another thread leads meanwhile."""
        self.baton.acquire()
        if step.ended_ns is not None:
            step.control.renew()
        if step.is_aside:
            self.returned.append(step)
            self.baton.release()
            raise Superseded
        self._current = None

    def rest(self, wait: Callable[[], None]) -> None:
        """The leader, which computes nothing: others may have the baton while it waits."""
        self.baton.release()
        try:
            wait()
        finally:
            self.baton.acquire()

    def _add_follower(self) -> None:
        """Precondition: the caller has the baton."""
        self._followers += 1
        thread = threading.Thread(
            target=self._work, name=f"brisk-relay-{self._followers}", daemon=True
        )
        thread.start()
        assert thread.native_id is not None
        self.threads.add(thread.native_id)

    def _work(self) -> None:
        """As the worker's main thread, whose end is the worker's."""
        try:
            if self._follow():
                self._take_turns()
        except BaseException:  # noqa: BLE001  # a worker without a leader must not live on
            sys.excepthook(*sys.exc_info())
            os._exit(1)

    def _take_turns(self) -> None:
        """The leader, as long as it is that."""
        with contextlib.suppress(Superseded):
            while self._take_turn():
                pass
            self._has_ended.set()
            self._is_busy.set()

    def _follow(self) -> bool:
        """Until this thread leads, with the baton, or all has ended: False."""
        quiet = 0
        while not self._has_ended.is_set():
            self._is_busy.wait()
            time.sleep(LOOK_S)
            step = self._current
            if step is None:
                quiet += 1
                if quiet == _QUIET_LOOKS:
                    quiet = 0
                    self._is_busy.clear()
                    if self._current is not None or self._has_ended.is_set():
                        self._is_busy.set()  # it was set before the line above
                continue
            quiet = 0
            is_long = time.monotonic_ns() - step.began_ns >= LONG_NS
            if is_long and self.baton.acquire(blocking=False):
                if self._current is step and self._attend(step):
                    step.is_aside = True
                    self._current = None
                    self.threads.discard(step.thread)
                    self._leader = threading.get_native_id()
                    self._followers -= 1
                    if not self._followers:
                        self._add_follower()
                    return True
                self.baton.release()
        return False
