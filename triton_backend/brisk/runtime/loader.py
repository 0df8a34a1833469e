"""The load lane: one thread that loads sessions while the worker goes on serving."""

from __future__ import annotations

import ctypes
import gc
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from brisk.errors import BriskError, InternalError
from brisk.runtime.session import Session, load_session
from brisk.runtime.tracing import LOADS
from brisk.telemetry.spans import SPANS


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """Exactly one of ``session`` and ``error``; ``ticket`` is the one given with the task."""

    ticket: int
    session: Session | None
    error: BriskError | None


@dataclass(frozen=True, slots=True)
class _LoadTask:
    ticket: int
    path: Path
    begin: Callable[[], None]


class Loader:
    """Loads in the order asked. ``wake`` is called when an outcome waits in ``take``."""

    def __init__(self, device: torch.device, wake: Callable[[], None]) -> None:
        self._device = device
        self._threads = torch.get_num_threads()
        self._wake = wake
        self._tasks: queue.SimpleQueue[_LoadTask | None] = queue.SimpleQueue()
        self._outcomes: deque[LoadOutcome] = deque()
        threading.Thread(target=self._run, name="brisk-loader", daemon=True).start()

    def load(self, ticket: int, path: Path, begin: Callable[[], None]) -> None:
        """Ask for a session; ``begin`` is called in the load lane just before it starts."""
        self._tasks.put(_LoadTask(ticket, path, begin))

    def give_memory_back(self) -> None:
        """Return freed memory to the system, after the loads asked for so far."""
        self._tasks.put(None)

    def take(self) -> LoadOutcome | None:
        """The next outcome; None where there is none."""
        return self._outcomes.popleft() if self._outcomes else None

    def _run(self) -> None:
        while True:
            task = self._tasks.get()
            if task is None:
                gc.collect()
                ctypes.CDLL(None).malloc_trim(0)
                continue
            begin_ns = time.monotonic_ns()
            self._outcomes.append(self._perform(task))
            name = f"load {task.path.name}"
            SPANS.add(LOADS, name, begin_ns, time.monotonic_ns(), str(task.path))
            self._wake()

    def _perform(self, task: _LoadTask) -> LoadOutcome:
        task.begin()
        try:
            return LoadOutcome(
                task.ticket, load_session(task.path, self._device, self._threads), None
            )
        except BriskError as error:
            return LoadOutcome(task.ticket, None, error)
        except Exception as error:  # noqa: BLE001  # whatever a load raises must reach its askers
            text = f"loading {task.path} failed: {type(error).__name__}: {error}"
            return LoadOutcome(task.ticket, None, InternalError(text))
