"""The threads of a worker, of which one leads: while a step takes long, another one may lead.

ONNX Runtime computes a step and cannot be asked to pause. While it computes, the step's thread has
released the *baton*, and a *follower* checks from time to time whether the step has taken long. If
so, the follower takes the baton, handles what has come, ends a run that no client waits for any
more, and leads from now on if a request should not wait for the step. The thread of that step
notices when the step is over, leaves its result to the leader, and ends: its priority may have
been lowered meanwhile, and not every user may raise it again.

All that a worker holds belongs to the thread that holds the baton. There is one thread for each
step that was left behind, one that leads, and one that follows.
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
"""Time between two looks at the step under way."""

LONG_NS = 30_000_000
"""A step that takes longer is long: what comes meanwhile is handled."""

_QUIET_LOOKS = 50
"""Looks that find no step before the follower waits to be woken."""


@dataclass(slots=True, eq=False)
class Step:
    """A step of ``run`` that is being computed.

    ``thread``: the system's number of the thread that computes it.
    ``helpers``: the numbers of the threads whose priority is lowered with it.
    ``is_aside``: another thread leads meanwhile.
    ``is_stalled``: it is aside, and does not end when it should.
    ``ended_ns``: when it was asked to end, else None.
    ``computed_ns``: the processor time of its thread at that moment.
    ``looked_computed_ns``: that when it was first found to take long; None if nobody has asked, 0
    if it is unknown.
    ``is_last``: when it is over, whether it was the last step of the run.
    ``error``: the error that it ended with.
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
    looked_computed_ns: int | None = None
    is_last: bool = False
    error: Exception | None = None

    def end(self, now_ns: int) -> None:
        """Ask the step to end. Precondition: it is under way, and the caller holds the baton."""
        if self.ended_ns is None:
            self.ended_ns = now_ns
            self.computed_ns = computed_ns(self.thread)
            self.control.end()


class Superseded(BaseException):
    """Raised if another thread has taken the lead during the step that has just ended."""


class Relay:
    """Threads of which one leads at a time.

    ``returned``: steps that were left behind and are over; the leader takes them out.
    ``threads``: the system's numbers of the leading and following threads, and of companions
    (``SideBySide``).
    """

    def __init__(
        self,
        take_turn: Callable[[], bool],
        attend: Callable[[Step], bool],
        *,
        may_hand_over: bool = True,
    ) -> None:
        """``take_turn``: called by the leader until it returns False. ``attend``: called by a
        follower, with the baton, while a step takes long; if it returns True, the follower leads
        from now on. ``may_hand_over`` False: there is no follower.
        """
        self._may_hand_over = may_hand_over
        self._take_turn = take_turn
        self._attend = attend
        self.baton = threading.Lock()
        """The lock whose holder owns the worker's state, also if it neither leads nor follows."""
        self._current: Step | None = None
        self._is_busy = threading.Event()
        self._has_ended = threading.Event()
        self._followers = 0  # changed by the holder of the baton
        self._leader = threading.get_native_id()  # changed by the thread that takes the lead
        self.threads = {self._leader}
        self.returned: deque[Step] = deque()

    def lead(self) -> None:
        """Serve until a turn reports that it was the last one, whichever thread takes it."""
        self.baton.acquire()
        self._leader = threading.get_native_id()
        self.threads = {self._leader}
        self._take_turns()
        self._has_ended.wait()

    def begin(self, step: Step) -> None:
        """Release the baton until ``finish``. Called by the leader before it computes."""
        step.thread = self._leader
        self._current = step
        if not self._is_busy.is_set():
            self._is_busy.set()
        self.baton.release()

    def finish(self, step: Step) -> None:
        """Take the baton again. Raises Superseded if another thread leads meanwhile."""
        self.baton.acquire()
        if step.ended_ns is not None:
            step.control.renew()
        if step.is_aside:
            self.returned.append(step)
            self.baton.release()
            raise Superseded
        self._current = None

    def rest(self, wait: Callable[[], None]) -> None:
        """Call ``wait`` without the baton. Called by a leader that computes nothing."""
        self.baton.release()
        try:
            wait()
        finally:
            self.baton.acquire()

    def _add_follower(self) -> None:
        """Start a follower, if the system has a thread for it; else the next turn tries again.
        Precondition: the caller has the baton."""
        thread = threading.Thread(target=self._work, name="brisk-relay", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return
        self._followers += 1
        assert thread.native_id is not None
        self.threads.add(thread.native_id)

    def _work(self) -> None:
        """Follow, then lead. An error ends the worker, as it does in the worker's main thread."""
        try:
            if self._follow():
                self._take_turns()
        except BaseException:  # noqa: BLE001  # a worker without a leader must not live on
            sys.excepthook(*sys.exc_info())
            os._exit(1)

    def _take_turns(self) -> None:
        """Take turns as long as this thread is the leader."""
        with contextlib.suppress(Superseded):
            while True:
                if not self._followers and self._may_hand_over:
                    self._add_follower()
                if not self._take_turn():
                    break
            self._has_ended.set()
            self._is_busy.set()

    def _follow(self) -> bool:
        """Return True, with the baton, when this thread leads; False when the worker has ended."""
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
                        self._is_busy.set()  # a step had set it before the line above
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
                    return True
                self.baton.release()
        return False
