"""A thread that computes one run beside the worker's own, on a part of the processors.

Two runs side by side get more done than one after the other on all processors: layers of some
0.1 ms gain little by a second thread. What runs, and what becomes of it, is the main thread's to
say; here layers are computed until the last one, or until the run is wanted back.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from brisk.runtime import torch_process
from brisk.runtime.batch import Run
from brisk.runtime.precedence import ComputingThread

if TYPE_CHECKING:
    from brisk.execution.workplace import Workplace


@dataclass(frozen=True, slots=True)
class Stopped:
    """A run that is computed here no more. Neither finished nor failed: it is at a boundary."""

    run: Run
    is_finished: bool
    error: Exception | None


class Companion:
    """Used by the worker's main thread; ``wake`` is called when ``take`` has something."""

    def __init__(self, threads: int, wake: Callable[[], None]) -> None:
        """``threads``: that its runs compute with."""
        self.threads = threads
        self.runs: list[Run] = []
        """The one that is computed, or was until it is taken."""
        self._wake = wake
        self._tasks: queue.SimpleQueue[Run] = queue.SimpleQueue()
        self._is_recalled = False
        self._stopped: Stopped | None = None
        self._thread: ComputingThread | None = None
        self._workplace: Workplace | None = None

    def begin(self, run: Run) -> None:
        """Compute ``run`` from where it is. Precondition: there is none."""
        self._is_recalled = False
        _share(True)
        self.runs.append(run)
        self._tasks.put(run)
        if self._thread is None:
            self._thread = ComputingThread(target=self._serve, name="brisk-companion", daemon=True)
            self._thread.start()
        self.keep_off()

    def recall(self) -> None:
        """Stop at the next boundary; ``take`` gives the run then."""
        self._is_recalled = True

    def take(self) -> Stopped | None:
        """The run, once it has stopped."""
        stopped = self._stopped
        if stopped is not None:
            self._stopped = None
            self.runs.clear()
            _share(False)
        return stopped

    def keep_off(self) -> None:
        """The caller's processor is not the companion's."""
        if self._workplace is not None:
            self._workplace.part()

    def _serve(self) -> None:
        from brisk.execution.lanes import compute_with
        from brisk.execution.workplace import Workplace

        compute_with(self.threads)
        with torch_process.inference():
            while True:
                run = self._tasks.get()
                if self._workplace is None:
                    self._workplace = Workplace.take(self.threads)
                self._stopped = self._compute(run)
                del run  # nothing of it must live on here
                self._wake()

    def _compute(self, run: Run) -> Stopped:
        frame = run.frame
        try:
            while not self._is_recalled:
                if frame.step():
                    return Stopped(run, True, None)
        except Exception as error:  # noqa: BLE001  # whatever it is, the run's requests learn of it
            return Stopped(run, False, error)
        return Stopped(run, False, None)


def _share(is_on: bool) -> None:
    """Let runs of small layers give the interpreter's lock up while there are two."""
    from brisk.native.run import SHARING

    SHARING.is_on = is_on
