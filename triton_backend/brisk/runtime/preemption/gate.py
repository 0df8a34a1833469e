"""The gate between the workers: a page of shared memory and an alarm, made before they are forked.

The foreground worker writes what real-time work it has, the background worker reads it before
each of its layers: while there is none, that is one load from memory. A layer that is held
sleeps until the alarm rings. It looks again every ``RECHECK_S`` whatever happens, so that nothing
hangs on a foreground worker that has died, and the supervisor opens the gate then. Nobody ever
waits for the background worker.

Every field is one aligned 8-byte word with one writer, so a reader sees old or new, nothing in
between; fields may be of different moments, which costs a wrong guess for one layer.
"""

from __future__ import annotations

import mmap
import os
import signal
from enum import IntEnum

from brisk.scheduling.policies import PaddingTrial, Realtime

RECHECK_S = 0.01
"""How long a held layer sleeps before the policy is asked again."""

_MILLI = 1000
_UNKNOWN = 0


class _Field(IntEnum):
    """Places of the words in the page; those from LAYER_RUNS on are the background worker's."""

    COUNT = 0
    END_NS = 1
    THREADS = 2
    DEADLINE_NS = 3
    SLOWDOWN_MILLI = 4
    TRIAL = 5
    LOAD_MILLI = 6
    LAYER_RUNS = 7
    LAYERS_BESIDE = 8
    IS_HELD = 9
    PROCESS = 10


class Gate:
    """Made by the supervisor and inherited by its workers."""

    def __init__(self) -> None:
        self._page = mmap.mmap(-1, mmap.PAGESIZE)  # shared with forked processes
        self._words = memoryview(self._page).cast("q")
        self.alarm = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Written to when the gate opens while a layer is held."""

    @property
    def is_open(self) -> bool:
        return not self._words[_Field.COUNT]

    # --- the foreground worker, and the supervisor when it has died -------------------------

    def close(self, count: int, deadline_ns: int | None) -> None:
        """There are ``count`` real-time jobs, at least 1, the first due at ``deadline_ns``."""
        words = self._words
        words[_Field.DEADLINE_NS] = deadline_ns or _UNKNOWN
        words[_Field.COUNT] = count

    def describe_run(
        self,
        end_ns: int | None,
        threads: int,
        slowdown: float | None,
        trial: PaddingTrial,
        load: float = 0.0,
    ) -> None:
        """What the real-time run that begins now is expected to be: see ``Realtime``."""
        words = self._words
        words[_Field.LOAD_MILLI] = int(load * _MILLI)
        words[_Field.END_NS] = end_ns or _UNKNOWN
        words[_Field.THREADS] = threads
        words[_Field.SLOWDOWN_MILLI] = _UNKNOWN if slowdown is None else int(slowdown * _MILLI)
        words[_Field.TRIAL] = trial

    def open(self) -> None:
        """There is no real-time work any more."""
        self._words[_Field.COUNT] = 0
        self.describe_run(None, 0, None, PaddingTrial.NONE)
        if self._words[_Field.IS_HELD]:
            os.eventfd_write(self.alarm, 1)

    @property
    def layers_beside(self) -> int:
        """Best-effort layers begun beside real-time work so far."""
        return self._words[_Field.LAYERS_BESIDE]

    @property
    def layer_runs(self) -> bool:
        """Whether a best-effort layer is under way."""
        return bool(self._words[_Field.LAYER_RUNS])

    @property
    def process(self) -> int:
        """Number of the background worker's process; 0: there is none."""
        return self._words[_Field.PROCESS]

    def resume_worker(self) -> None:
        """The foreground worker has died: nothing that it has suspended stays so."""
        if self.process:
            os.kill(self.process, signal.SIGCONT)

    # --- the background worker ---------------------------------------------------------------

    def enter(self) -> None:
        """This process is the background worker."""
        self._words[_Field.PROCESS] = os.getpid()

    def realtime(self) -> Realtime:
        words = self._words
        slowdown_milli = words[_Field.SLOWDOWN_MILLI]
        return Realtime(
            count=words[_Field.COUNT],
            end_ns=words[_Field.END_NS] or None,
            threads=words[_Field.THREADS],
            deadline_ns=words[_Field.DEADLINE_NS] or None,
            slowdown=slowdown_milli / _MILLI if slowdown_milli else None,
            trial=PaddingTrial(words[_Field.TRIAL]),
            load=words[_Field.LOAD_MILLI] / _MILLI,
        )

    def begin_layer(self) -> None:
        words = self._words
        words[_Field.IS_HELD] = 0
        words[_Field.LAYER_RUNS] = 1
        if words[_Field.COUNT]:
            words[_Field.LAYERS_BESIDE] += 1

    def hold_layers(self) -> None:
        """None runs until the alarm rings, or for ``RECHECK_S`` where it rang just before this."""
        self._words[_Field.LAYER_RUNS] = 0
        self._words[_Field.IS_HELD] = 1

    def pause_layers(self) -> None:
        """None runs and none waits."""
        self._words[_Field.LAYER_RUNS] = 0
        self._words[_Field.IS_HELD] = 0

    def leave(self) -> None:
        """The worker has died: the supervisor says so, while no other process has its number."""
        self._words[_Field.PROCESS] = 0
        self.pause_layers()
