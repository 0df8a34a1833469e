"""Ending what a thread computes, from another thread.

ONNX Runtime looks at the ``RunOptions`` of a run between two nodes, of a Loop's body as well, and
ends it where they say so: a run of 1.6 s took 8 ms in the median to stop. A single node that never
ends is not stopped by this.
"""

from __future__ import annotations

import threading
from typing import Any

from brisk.segments.session import onnxruntime

_SHRINKS = "memory.enable_memory_arena_shrinkage"


class RunControl:
    """What ONNX Runtime is told of the runs of one thread.

    ``end`` may be called by any thread, the rest by the owner alone. Whoever calls ``end`` sees to
    it that the run which is to end is still the owner's.
    """

    def __init__(self) -> None:
        self._options: dict[bool, Any] = {}

    def options(self, *, shrinks_arena: bool) -> Any:
        """The ``RunOptions`` of the owner's next run, made once.

        ``shrinks_arena``: whether the arena gives back what the run leaves free (the entry's
        ``memory.enable_memory_arena_shrinkage``).
        """
        found = self._options.get(shrinks_arena)
        if found is None:
            found = self._options[shrinks_arena] = onnxruntime().RunOptions()
            if shrinks_arena:
                found.add_run_config_entry(_SHRINKS, "cpu:0")
        return found

    def end(self) -> None:
        """Let the owner's run end with an error at its next node; later ones would, too."""
        for options in list(self._options.values()):
            options.terminate = True

    def renew(self) -> None:
        """After ``end``: later runs are computed again."""
        self._options = {}


_threads = threading.local()


def control() -> RunControl:
    """The calling thread's."""
    try:
        found: RunControl = _threads.control
    except AttributeError:
        found = _threads.control = RunControl()
    return found
