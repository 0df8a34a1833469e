"""Prepared forms made in the background: one process at a time, on processors that are idle.

A separate process slows no request, neither by the interpreter's lock nor by memory that it leaves
behind, and the worker survives its crashes. Free of torch.

``python -m brisk.runtime.models.background_prepare MODEL --threads N`` is that process.
Every failure is logged in one line and is harmless: the model is served from its own file.
"""

from __future__ import annotations

import queue
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from brisk.artefacts import room
from brisk.errors import BriskError, InvalidModelError, UnavailableError
from brisk.os_priority import step_aside
from brisk.runtime.helper_process import HelperProcess
from brisk.runtime.log import LOGGER, start_logging
from brisk.runtime.sessions.identity import identity_of, whole_copy_at

DELAY_S = 5.0
"""The time from a load to the start of its build: a model that is unloaded before needs none, and
starts come first."""

MOST_PROCESSOR_S = 1200
"""The most processor time of one build, which may take any wall-clock time: it runs only on idle
processors."""

LOOK_S = 0.5
"""Time between two checks whether a build is still wanted."""

REFUSED, BUSY = 3, 4
"""Exit statuses: the model cannot be prepared, also not later; another process is preparing it."""


@dataclass(frozen=True, slots=True, eq=False)
class PreparationTask:
    """A task: make the prepared form of ``model``, cut after each of ``taps``."""

    model: Path
    taps: Collection[str]
    is_wanted: Callable[[], bool]
    """Whether the model is still served; if not, the form is not made, or its making ends."""
    tell: Callable[[bool], None]
    """Called from another thread to report whether the form is there."""


class SegmentPreparer:
    """Prepares requested models one after the other, each once as long as its files stay."""

    def __init__(self, threads: int, delay_s: float = DELAY_S) -> None:
        self._threads = threads
        self._delay_s = delay_s
        self._tasks: queue.SimpleQueue[tuple[float, PreparationTask]] = queue.SimpleQueue()
        """The tasks, each with the time when it is due."""
        self._refused: set[tuple[str, tuple[str, ...]]] = set()
        self._process = HelperProcess("brisk.runtime.models.background_prepare")
        threading.Thread(target=self._run, name="brisk-prepare", daemon=True).start()

    def build_later(self, task: PreparationTask) -> None:
        """Queue ``task``, which makes the prepared form later, unless it exists."""
        self._tasks.put((time.monotonic() + self._delay_s, task))

    def _run(self) -> None:
        while True:
            due_s, task = self._tasks.get()
            time.sleep(max(due_s - time.monotonic(), 0.0))
            status = self._build(task)
            if status == BUSY:
                self.build_later(task)
            else:
                task.tell(status == 0)

    def _build(self, task: PreparationTask) -> int:
        """Run the process that makes the prepared form; return its exit status."""
        model, taps = task.model, tuple(sorted(task.taps))
        if not task.is_wanted():
            return 1
        try:
            this = (identity_of(str(model)), taps)
        except InvalidModelError:
            return 1  # the model was unloaded and removed meanwhile
        if this in self._refused:
            return REFUSED
        try:
            whole_copy_at(model)
        except InvalidModelError as error:
            LOGGER.warning(f"no prepared form of {model}: {error}")
            self._refused.add(this)
            return REFUSED
        except (BriskError, OSError):
            return BUSY
        try:
            # this thread lives as long as the worker, so the kernel ends the builder with it
            self._process.start(*arguments(model, self._threads, taps))
        except OSError as error:
            LOGGER.warning(f"the prepared form of {model} cannot be made: {error}")
            return 1
        while (status := self._process.ended(LOOK_S)) is None:
            if not task.is_wanted():
                self._process.kill()
        if status < 0:  # it could not remove what it had written
            room.sweep()
        if status == -signal.SIGXCPU:
            LOGGER.warning(
                f"no prepared form of {model}: making it took more than {MOST_PROCESSOR_S} s of "
                "processor time"
            )
            status = REFUSED
        if status == REFUSED:
            self._refused.add(this)
        elif status == -signal.SIGKILL and not task.is_wanted():
            return 1
        elif status not in (0, BUSY):
            LOGGER.warning(f"preparing {model} ended with status {status}")
        return status


def arguments(model: Path, threads: int, taps: Collection[str]) -> list[str]:
    """Return the arguments of the process that makes the prepared form."""
    return ["--threads", str(threads), *(f"--tap={tap}" for tap in taps), "--", str(model)]


def main() -> int:
    """Make the prepared form; return the exit status.

    0: it was made or exists; 1: it cannot be made now; ``REFUSED``; ``BUSY``.
    """
    import argparse  # the worker, which imports this module, has no use for it

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--tap", action="append", default=[], help="a value to cut behind")
    chosen = parser.parse_args()
    start_logging()
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_PROCESSOR_S, resource.RLIM_INFINITY))
    if not step_aside():
        return 1
    model, threads, taps = chosen.model, chosen.threads, chosen.tap
    from brisk.segments.prepared.preparation import is_prepared, prepare

    try:
        if is_prepared(model, threads, taps):
            return 0
        preparation = prepare(model, threads, taps)
    except UnavailableError:
        return BUSY
    except BriskError as error:
        LOGGER.warning(f"no prepared form of {model}: {error}")
        return REFUSED
    except OSError as error:
        LOGGER.warning(f"no prepared form of {model}: {error}")
        return 1
    LOGGER.info(
        f"made {preparation.path} in {preparation.seconds:.1f} s: the next start is from it"
    )
    if not preparation.agrees:
        LOGGER.warning(
            f"{model}: ONNX Runtime optimises it otherwise than another model of its structure; "
            "none of them is started by another one's form any more"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
