"""The niceness of Brisk's processes and threads, which decides who gets a processor first.

| who | niceness |
| --- | --- |
| computing threads and stubs of real-time models | ``$BRISK_REALTIME_NICENESS`` (-15) |
| everything else that a request waits for | the server's own |
| loads: loader threads, and threads of ``at_loading_priority`` | ``LOADING`` |
| runs so long that others go on concurrently | ``LOADING`` |
| those that do not end when they should, next to more urgent ones | idle processors only |
| ONNX Runtime's threads that compute with them | ``STALLED`` |
| training of learned caches by ``brisk caches`` | ``TRAINING`` |
| best-effort work | ``LEAST``, or what gives it its minimum share (``lower_best_effort``) |
| helper processes in the background | idle processors only (``step_aside``) |

Two threads of one niceness get half of a shared processor each. A request computed by two threads
on two cores therefore takes up to twice as long next to any busy process, such as the start of
another model's stub. A niceness below 0 needs CAP_SYS_NICE or a limit (RLIMIT_NICE) that allows
it; without them nothing changes. A thread inherits the niceness of the thread that starts it.
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
"""The niceness of loads. Not SCHED_IDLE, nor 19: such a thread holds the interpreter's lock now
and then, and needs a processor to release it. With both processors busy, a real-time request
concurrent with a load waited 0.13 to 1.4 s for the lock under SCHED_IDLE, 0.3 to 0.4 at 19, 0.024
to 0.028 at 5."""

STALLED = 12
"""The niceness of threads that compute with a run whose end is unknown, and of the run's own
thread if SCHED_IDLE is refused: they get a fifteenth of a processor that another run wants."""

TRAINING = 10

SHORT_SLICE_NS = 300_000
"""The time slice on a processor of threads that real-time requests wait for."""

LONG_SLICE_NS = 10_000_000
"""The time slice of best-effort work: longer than the kernel's own, so that a thread that wakes up
next to it takes the processor at once: those of clients and of Triton, too."""

_WEIGHTS = (1024, 820, 655, 526, 423, 335, 272, 215, 172, 137, 110, 87, 70, 56, 45, 36, 29, 23)
"""The kernel's weights of niceness 0 to 17 (``sched_prio_to_weight``): two threads that compete
for a processor share it in proportion to these."""

_SCHED_SETATTR = 314
"""The system call's number on x86-64; the C library has no function for it."""


_Result = TypeVar("_Result")


def process_niceness() -> int:
    """Return the calling thread's niceness, which threads and processes that it starts inherit."""
    return os.getpriority(os.PRIO_PROCESS, 0)


def set_process(niceness: int) -> None:
    """Set the niceness of the calling thread, and so of all that it starts from now on.

    Raises PermissionError if it may not go so low.
    """
    os.setpriority(os.PRIO_PROCESS, 0, niceness)


def lower_thread(niceness: int) -> None:
    """Raise the calling thread's niceness, if that is allowed. It cannot be lowered again."""
    _set_thread(threading.get_native_id(), niceness)


def set_threads(niceness: int, except_for: Collection[int] = ()) -> bool:
    """Set the niceness of this process's threads, except for those of the given numbers.

    Return False if it is not allowed; then nothing changes.
    """
    for entry in sorted(Path("/proc/self/task").iterdir()):
        if (thread := int(entry.name)) in except_for:
            continue
        try:
            os.setpriority(os.PRIO_PROCESS, thread, niceness)
        except ProcessLookupError:
            continue  # the thread has ended meanwhile
        except PermissionError:
            return False
    return True


class Precedence:
    """Puts a worker's computing threads before other processes while it serves real-time models,
    and behind its own other threads while nobody should wait for what they compute.

    Python's other threads, which load, maintain sessions or wait, keep their niceness. Used by one
    thread at a time.
    """

    def __init__(
        self,
        niceness: int,
        tell: Callable[[str], None],
        computing: Callable[[], Collection[int]],
        change: Callable[[int, frozenset[int]], bool] = set_threads,
    ) -> None:
        """``niceness`` 0: nothing takes precedence. ``computing``: the system's numbers of
        Python's threads that compute; ONNX Runtime's all do."""
        self._usual = process_niceness()
        self._niceness = niceness
        self._tell = tell
        self._computing = computing
        self._change = change
        self._is_taken = False
        self._aside: set[int] = set()

    def follow(self, serves_realtime: bool) -> None:
        """Take precedence if ``serves_realtime``, else give it up, unless that is so already."""
        if serves_realtime == self._is_taken or not self._niceness:
            return
        spared = frozenset(_python_threads() - set(self._computing()) | self._aside)
        try:
            is_changed = self._change(self._niceness if serves_realtime else self._usual, spared)
        except OSError:  # no descriptor is left to list the threads with: the next call tries
            return
        self._is_taken = serves_realtime
        if not is_changed:
            self._tell(
                f"niceness {self._niceness} is refused: real-time requests share processors with "
                f"other processes as equals; CAP_SYS_NICE allows it, "
                f"{REALTIME_NICENESS}=0 asks for none"
            )
            self._niceness = 0
            self._is_taken = False

    def stand_aside(self, thread: int) -> frozenset[int]:
        """Lower the priority of a thread until it ends, and that of its helpers: the threads of
        ONNX Runtime that are running now, if they can come back (``rejoin``). Return the helpers.
        """
        helpers: frozenset[int] = frozenset()
        if self._is_taken:
            helpers = frozenset(_running_threads() - _python_threads() - self._aside)
        self._lower([thread, *helpers], LOADING)
        self._aside |= helpers
        return helpers

    def stand_further(self, thread: int, helpers: frozenset[int]) -> None:
        """Leave only idle processors to a thread that stands aside and does not end.

        At niceness 12, and at 19, the kernel still lets it go on for a moment whenever one of a
        real-time run's threads wakes up: next to it such a run's p99 doubled; under SCHED_IDLE it
        does not. The thread needs the interpreter's lock once, when it ends.
        """
        self._lower([thread, *helpers], STALLED)
        with contextlib.suppress(OSError):  # the thread has ended, or the system refuses it
            os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))

    def _lower(self, threads: Iterable[int], niceness: int) -> None:
        for each in threads:
            _set_thread(each, max(niceness, self._usual))

    def rejoin(self, helpers: frozenset[int]) -> None:
        """Raise the helpers' priority again, since the run that they stood aside with is over."""
        self._aside -= helpers
        for helper in helpers:
            _set_thread(helper, self._niceness if self._is_taken else self._usual)


def _python_threads() -> set[int]:
    return {thread.native_id for thread in threading.enumerate() if thread.native_id is not None}


def _running_threads() -> set[int]:
    """Return the threads of this process that have a processor or wait for one; none if no
    descriptor is left to read that with."""
    running = set()
    with contextlib.suppress(OSError):
        for entry in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):  # the thread has ended meanwhile
                state = (entry / "stat").read_text().rpartition(") ")[2][0]
                if state == "R":
                    running.add(int(entry.name))
    return running


def computed_ns(thread: int) -> int:
    """Return the processor time of a thread of this process; 0 if it has ended or is unknown."""
    try:
        return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _set_thread(thread: int, niceness: int) -> None:
    """Set a thread's niceness; does nothing if that is refused or the thread has ended."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, thread, niceness)


def ask_slices(slice_ns: int) -> bool:
    """Give the calling thread, and those that it starts from now on, time slices of ``slice_ns``.

    The kernel (from 6.12 on) lets a thread that has just got a processor keep it for its slice,
    about 1.4 to 3 ms, before a thread that wakes up may take it, whatever the niceness of both;
    then it checks at the next tick, up to 4 ms later. A thread that asks for shorter slices than
    the running one's need not wait. Neither gets more of the processor by it.

    Return whether the system call exists and is allowed; kernels before 6.12 ignore the slice.
    """
    import struct

    from brisk.posix import libc

    policy = os.sched_getscheduler(0)
    if policy not in (os.SCHED_OTHER, os.SCHED_BATCH):
        return False
    # struct sched_attr: size, policy, flags, niceness, priority, runtime (here: the slice),
    # deadline, period
    attributes = struct.Struct("=IIQiIQQQ")
    data = attributes.pack(attributes.size, policy, 0, process_niceness(), 0, slice_ns, 0, 0)
    return libc().syscall(_SCHED_SETATTR, 0, data, 0) == 0


def lower_best_effort(share: float) -> None:
    """Run at lower priority: a thread of ours gets a seventieth of the time of a thread that
    competes with it, or the minimum ``share``.

    Threads started later inherit it. It is a niceness and not SCHED_IDLE, because the kernel takes
    a processor that runs SCHED_IDLE work for an idle one, also when it places further such work:
    two threads of one run then shared a processor next to an idle one.

    Under SCHED_BATCH a thread that wakes up takes nobody's place before the next tick. Else those
    of a worker that goes on after a suspension do, at any niceness: they have had less than their
    share. Where the answer's reader had just used up its slice, it waited 2 to 4 ms for them.
    """
    set_process(niceness_for(share) if share > 0 else LEAST)
    with contextlib.suppress(OSError):  # refused by a seccomp filter: it runs as others do
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    ask_slices(LONG_SLICE_NS)


def niceness_for(share: float) -> int:
    """Return the greatest niceness that gets ``share`` or more of a processor next to a normal
    thread."""
    for niceness, weight in reversed(list(enumerate(_WEIGHTS))):
        if weight / (weight + _WEIGHTS[0]) >= share:
            return niceness
    return 0


def at_loading_priority(call: Callable[[], _Result]) -> _Result:
    """Run ``call`` in a thread of its own at lower priority (``LOADING``); return or raise what it
    does.

    Threads that it starts inherit its niceness. Each call gets a new thread, because a thread
    needs a privilege to lower its niceness again."""
    results: list[_Result] = []
    errors: list[BaseException] = []

    def work() -> None:
        lower_thread(LOADING)
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001  # the caller's thread raises it
            errors.append(error)

    thread = threading.Thread(target=work, name="brisk-low-priority", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def run_when_idle() -> None:
    """Run the process only on idle processors. Raises OSError if that is refused."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def step_aside() -> bool:
    """Prepare a helper process: it runs only on idle processors, ends with the worker, and is
    ended before others when memory is short. Called first; torch is imported after this.

    The kernel ends the process with the thread that started it. Return False if that thread has
    ended already.
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
