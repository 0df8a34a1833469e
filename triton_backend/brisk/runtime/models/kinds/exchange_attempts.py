"""Exchanges for warm sessions that have ended their worker: not tried without end.

Making a session optimises the model's graph, and a model may crash ONNX Runtime there, when it
has been served for a while and no load is under way that could be blamed. So each exchange leaves
a note on disk until it is over; where notes are left over, workers have died of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from brisk.artefacts.place import cache_directory
from brisk.ownership import make_private

MOST_DEATHS = 2
"""A worker may also die of something else meanwhile, once."""


@contextlib.contextmanager
def exchange_attempt(model: Path) -> Iterator[bool]:
    """Around the exchange: whether it may be tried. The note goes when it has ended, well or not.

    Where no note can be written it may be.
    """
    try:
        note = _note_of(model)
        deaths = int(note.read_text() or "0") if note.exists() else 0
        if deaths < MOST_DEATHS:
            make_private(note.parent)
            note.write_text(str(deaths + 1))
    except (OSError, ValueError):
        yield True
        return
    if deaths >= MOST_DEATHS:
        yield False
        return
    try:
        yield True
    finally:
        with contextlib.suppress(OSError):
            note.unlink()


def _note_of(model: Path) -> Path:
    """Of the model file as it is now: a changed one is tried anew. Raises OSError."""
    status = model.stat()
    what = f"{os.path.realpath(model)}:{status.st_size}:{status.st_mtime_ns}"
    digest = hashlib.blake2b(os.fsencode(what), digest_size=16).hexdigest()
    return cache_directory() / "exchanges" / digest
