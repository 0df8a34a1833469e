"""Who gets a processor first: niceness of Brisk's processes and threads, and what sets it.

| who | niceness |
| --- | --- |
| computing threads and stubs of real-time models | ``$BRISK_REALTIME_NICENESS`` (-15) |
| everything else that a request waits for | the server's own |
| loads: their lanes, and threads that stand back | ``LOADING`` |
| runs that take so long that others go on beside them | ``LOADING`` |
| those that do not end when they should, beside more urgent ones | idle processors only |
| ONNX Runtime's threads that compute with them | ``STALLED`` |
| training of learned caches by ``brisk caches`` | ``TRAINING`` |
| best-effort work | ``LEAST``, or what gives it its minimum share (``stand_back``) |
| helper processes in the background | idle processors only (``step_aside``) |

A processor that two threads of one niceness share gives each half, so that a request computed by
two threads on two cores takes up to twice as long beside any busy process, such as the start of
another model's stub. Going below niceness 0 needs CAP_SYS_NICE or a limit (RLIMIT_NICE) that
allows it; without them nothing changes. Threads inherit the niceness of the one that starts them.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TypeVar

from brisk.settings import REALTIME_NICENESS

LEAST = 19

LOADING = 5
"""Not SCHED_IDLE, nor 19: such a thread holds the interpreter's lock now and then, and it must
have a processor to let go of it. With both processors busy, a real-time request beside a load
waited 0.13 to 1.4 s for the lock under SCHED_IDLE, 0.3 to 0.4 at 19, 0.024 to 0.028 at 5."""

STALLED = 12
"""Of what computes with a run that nobody knows the end of, and of that run itself where
SCHED_IDLE is refused: a fifteenth of a processor that another run wants."""

TRAINING = 10

SLICE_NS = 300_000
"""Turns on a processor of threads that real-time requests wait for."""

_WEIGHTS = (1024, 820, 655, 526, 423, 335, 272, 215, 172, 137, 110, 87, 70, 56, 45, 36, 29, 23)
"""The kernel's weights of niceness 0 to 17 (``sched_prio_to_weight``): the share of two threads
that compete for a processor."""

_SCHED_SETATTR = 314
"""The system call's number on x86-64; the C library has no function for it."""


_Result = TypeVar("_Result")


def process_niceness() -> int:
    """Of the thread that asks, which is what threads and processes that it starts inherit."""
    return os.getpriority(os.PRIO_PROCESS, 0)


def set_process(niceness: int) -> None:
    """Of the calling thread, and so of all that it starts from now on.

    Raises PermissionError where it may not go so low.
    """
    os.setpriority(os.PRIO_PROCESS, 0, niceness)


def lower_thread(niceness: int) -> None:
    """Of the calling thread; nothing where it is refused. There is no way back up."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)


def set_threads(niceness: int, except_for: Collection[int] = ()) -> bool:
    """Give the threads of this process a niceness, those of the given numbers excepted.

    False, changing nothing, where it is not allowed.
    """
    for entry in sorted(Path("/proc/self/task").iterdir()):
        if (thread := int(entry.name)) in except_for:
            continue
        try:
            os.setpriority(os.PRIO_PROCESS, thread, niceness)
        except ProcessLookupError:
            continue  # it has ended meanwhile
        except PermissionError:
            return False
    return True


class Precedence:
    """A worker's computing threads before other processes, while it serves real-time models; and
    behind its others, while nobody should wait for what they compute.

    Python's other threads, which load, look after sessions or wait, keep their niceness. Used by
    one thread at a time.
    """

    def __init__(
        self,
        niceness: int,
        tell: Callable[[str], None],
        computing: Callable[[], Collection[int]],
        change: Callable[[int, frozenset[int]], bool] = set_threads,
    ) -> None:
        """``niceness`` 0: nothing takes precedence. ``computing``: Python's threads that compute,
        as the system numbers them; ONNX Runtime's all do."""
        self._usual = process_niceness()
        self._niceness = niceness
        self._tell = tell
        self._computing = computing
        self._change = change
        self._is_taken = False
        self._aside: set[int] = set()

    def follow(self, serves_realtime: bool) -> None:
        """Take precedence, or give it up, where that is not so already."""
        if serves_realtime == self._is_taken or not self._niceness:
            return
        self._is_taken = serves_realtime
        spared = frozenset(_python_threads() - set(self._computing()) | self._aside)
        if not self._change(self._niceness if serves_realtime else self._usual, spared):
            self._tell(
                f"niceness {self._niceness} is refused: real-time requests share processors with "
                f"other processes as equals; CAP_SYS_NICE allows it, "
                f"{REALTIME_NICENESS}=0 asks for none"
            )
            self._niceness = 0
            self._is_taken = False

    def stand_aside(self, thread: int) -> frozenset[int]:
        """Let others go before a thread, until it ends, and before what computes with it: threads
        of ONNX Runtime that are running now, where they can come back (``rejoin``).
        """
        helpers: frozenset[int] = frozenset()
        if self._is_taken:
            helpers = frozenset(_running_threads() - _python_threads() - self._aside)
        self._lower([thread, *helpers], LOADING)
        self._aside |= helpers
        return helpers

    def stand_further(self, thread: int, helpers: frozenset[int]) -> None:
        """They stand aside and do not end: the thread gets what processors others leave.

        At niceness 12, and at 19, the kernel still lets it go on for a moment whenever one of a
        real-time run's threads wakes up: beside it such a run's p99 doubled, here it stays. Its
        thread wants the interpreter's lock once, when it ends.
        """
        self._lower([thread, *helpers], STALLED)
        with contextlib.suppress(OSError):  # it has ended, or the system refuses it
            os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))

    def _lower(self, threads: Iterable[int], niceness: int) -> None:
        for each in threads:
            _set_thread(each, max(niceness, self._usual))

    def rejoin(self, helpers: frozenset[int]) -> None:
        """What they stood aside with is over."""
        self._aside -= helpers
        for helper in helpers:
            _set_thread(helper, self._niceness if self._is_taken else self._usual)


def _python_threads() -> set[int]:
    return {thread.native_id for thread in threading.enumerate() if thread.native_id is not None}


def _running_threads() -> set[int]:
    """Threads of this process that have a processor or wait for one."""
    running = set()
    for entry in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            state = (entry / "stat").read_text().rpartition(") ")[2][0]
            if state == "R":
                running.add(int(entry.name))
    return running


def computed_ns(thread: int) -> int:
    """Processor time of a thread of this process; 0 where it has ended or nobody counts it."""
    try:
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _set_thread(thread: int, niceness: int) -> None:
    """Nothing where it is refused or has ended."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread, niceness)


def shorten_slices() -> bool:
    """Have the calling thread, and those that it starts from now on, take short turns.

    The kernel (from 6.12 on) lets a thread that has just got a processor keep it for its slice,
    about 1.4 to 3 ms, before one that wakes up may take it, whatever the niceness of both; and
    looks again with the next tick, up to 4 ms later. Who asks for shorter turns than the one that
    runs need not wait. It is no more of the processor that way, only sooner.

    Whether the system call exists and is allowed; kernels before 6.12 take no notice.
    """
    import struct

    from brisk.posix import libc

    policy = os.sched_getscheduler(0)
    if policy not in (os.SCHED_OTHER, os.SCHED_BATCH):
        return False
    # struct sched_attr: size, policy, flags, niceness, priority, runtime (here: the slice),
    # deadline, period
    attributes = struct.Struct("=IIQiIQQQ")
    data = attributes.pack(attributes.size, policy, 0, process_niceness(), 0, SLICE_NS, 0, 0)
    return libc().syscall(_SCHED_SETATTR, 0, data, 0) == 0


def stand_back(share: float) -> None:
    """Leave the processors to others: a seventieth of the time of a thread that competes with one
    of ours, or the minimum ``share``.

    Threads started later inherit it. It is a niceness and not SCHED_IDLE, because the kernel takes
    a processor that runs SCHED_IDLE work for an idle one, also when it places further such work:
    two threads of one run came to share a processor beside an idle one.
    """
    set_process(niceness_for(share) if share > 0 else LEAST)


def niceness_for(share: float) -> int:
    """The greatest niceness that gets at least ``share`` of a processor beside a normal thread."""
    for niceness, weight in reversed(list(enumerate(_WEIGHTS))):
        if weight / (weight + _WEIGHTS[0]) >= share:
            return niceness
    return 0


def standing_back(call: Callable[[], _Result]) -> _Result:
    """Run ``call`` in a nicer thread of its own (``LOADING``); return or raise what it does.

    Threads that it starts inherit its niceness. A new thread each time, because one that has
    become nicer needs a privilege to come back.
    """
    results: list[_Result] = []
    errors: list[BaseException] = []

    def work() -> None:
        lower_thread(LOADING)
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001  # the caller's thread raises it
            errors.append(error)

    thread = threading.Thread(target=work, name="brisk-standing-back", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def run_when_idle() -> None:
    """Run the process only on processors that are idle. Raises OSError where that is refused."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def step_aside() -> bool:
    """What a helper process does first: run only on idle processors, end with the worker, and
    before others when memory is short; torch comes after this.

    The kernel ends the process with the thread that started it. False where that has ended
    already.
    """
    from brisk.posix import end_with_parent

    parent = os.getppid()
    end_with_parent()
    if os.getppid() != parent:
        return False
    try:
        run_when_idle()
    except OSError:  # some containers refuse it
        set_process(LEAST)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    os.environ["OMP_NUM_THREADS"] = "1"
    return True
