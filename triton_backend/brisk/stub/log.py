"""Lines for Triton's log."""

from __future__ import annotations

import triton_python_backend_utils as pb_utils


def prepare_log() -> None:
    """What the first line needs, 5 ms: for a moment in which there is nothing else to do."""
    import inspect

    # Triton's logger asks it where it was called from, which asks the disk about every module of
    # the process to find the one that a file is: 15 to 24 ms for the first line.
    inspect.modulesbyfile.setdefault(__file__, __name__)


def log(level: str, text: str) -> None:
    """``level``: ``error``, ``warning``, anything else is information. Any thread."""
    prepare_log()
    write = {
        "error": pb_utils.Logger.log_error,
        "warning": pb_utils.Logger.log_warn,
    }.get(level, pb_utils.Logger.log_info)
    write(text)
