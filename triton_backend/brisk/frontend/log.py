"""Lines for Triton's log."""

from __future__ import annotations

import inspect

import triton_python_backend_utils as pb_utils

# Triton's logger asks ``inspect`` where it was called from, which asks the disk about every module
# of the process to find the one that a file is: 15 to 24 ms of each load, for its first line.
inspect.modulesbyfile.setdefault(__file__, __name__)


def log(level: str, text: str) -> None:
    """``level``: ``error``, ``warning``, anything else is information. Any thread."""
    write = {
        "error": pb_utils.Logger.log_error,
        "warning": pb_utils.Logger.log_warn,
    }.get(level, pb_utils.Logger.log_info)
    write(text)
