"""Compiling the backend's Python files once, ahead of the processes that import them.

Where Python may not write what it compiles (``PYTHONDONTWRITEBYTECODE``, which many containers
set), each stub and each runtime would compile all of it anew: 0.15 s of every load.
"""

from __future__ import annotations

import compileall
from pathlib import Path


def compile_files(*places: Path) -> None:
    """Compile Python files, and those of directories, that are not compiled as they stand.

    For this interpreter's version: a stub of another one does as it would without. Nothing happens
    where the directories cannot be written. Safe to call by several processes at once.
    """
    for place in places:
        if place.is_dir():
            compileall.compile_dir(place, quiet=2)
        else:
            compileall.compile_file(place, quiet=2)
