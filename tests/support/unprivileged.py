"""Programs for whom the modes of files count, although the tests may run as root."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROGRAM = """
import ctypes, os, sys
for capability in (1, 2):  # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, by which root reads all
    ctypes.CDLL(None).prctl(24, capability)  # PR_CAPBSET_DROP, for the next program
os.execv(sys.argv[1], sys.argv[1:])
"""

UNPRIVILEGED = (sys.executable, "-c", _PROGRAM)
"""The words before a command, whose program is named by its path, that run it so."""


@contextmanager
def of_mode(path: Path, mode: int) -> Iterator[Path]:
    """Give a directory a mode, and its own again behind the block, so that it can be removed."""
    before = path.stat().st_mode
    path.chmod(mode)
    try:
        yield path
    finally:
        path.chmod(before)
