"""Notes which of Brisk's files run, while a test asks; Python imports this as it starts.

A byte of the file ``$TEST_TRACE_SWITCH`` says which request is being answered; 0: none. For each,
a line with the path of every file that runs is appended to the file ``$TEST_TRACED_FILES``. A
worker is forked from its supervisor with its main thread's profile function.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading
from types import FrameType
from typing import Any

_SWITCH = os.environ.get("TEST_TRACE_SWITCH")
_PART = f"{os.sep}brisk{os.sep}"

if _SWITCH:
    with open(_SWITCH, "rb") as _file:
        _switch = mmap.mmap(_file.fileno(), 1, access=mmap.ACCESS_READ)
    _files = os.open(os.environ["TEST_TRACED_FILES"], os.O_WRONLY | os.O_APPEND)
    _seen: set[tuple[int, int, str]] = set()

    def _note(frame: FrameType, event: str, argument: Any) -> None:
        """Note the files of a call's callee and caller; the caller may have begun long before."""
        request = _switch[0]
        if not request:
            return
        for each in (frame, frame.f_back):
            path = each.f_code.co_filename if each is not None else ""
            key = request, os.getpid(), path
            if (_PART in path or path.endswith("model.py")) and key not in _seen:
                _seen.add(key)
                os.write(_files, f"{request} {path}\n".encode())

    threading.setprofile(_note)
    sys.setprofile(_note)
