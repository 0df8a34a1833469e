"""Exchanges for warm sessions that have ended their worker are not tried without end.

Making a session optimises the model's graph, and a model may crash ONNX Runtime there, after it
has been served for a while and when the crash is attributed to no load. A worker lists the
attempts under way in a page that it shares with its supervisor. When the worker has died, the
supervisor counts a death of each of them, in a note on disk. Nothing else counts: neither attempts
that others have under way, nor those that were under way when the worker was ended on purpose, or
the runtime with its container or machine.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import threading
from collections.abc import Iterator
from pathlib import Path

from brisk.errors import InvalidModelError
from brisk.ownership import make_private
from brisk.runtime.sessions.identity import NOTE_BYTES, note_of
from brisk.settings import cache_directory
from brisk.tuning import SessionTuning

MOST_DEATHS = 2
"""The deaths of workers during exchanges of a model from which on none is tried: one worker may
have died of something else meanwhile."""

_DEATHS = "exchange-deaths"
"""The folder of notes in the cache directory, each with the number of a model's deaths."""

_NOTHING = bytes(NOTE_BYTES)


class Attempts:
    """The attempts under way in this process. Any thread may use it."""

    def __init__(self) -> None:
        self.page = new_page()
        """The page with the digest of each attempt. A worker puts the page of its slot here."""
        self._lock = threading.Lock()
        self._models: dict[int, Path] = {}
        """The models of the attempts, by their places in the page."""

    @contextlib.contextmanager
    def under_way(self, model: Path, digest: bytes) -> Iterator[None]:
        """List an attempt while the context is open; one that finds the page full is left out."""
        with self._lock:
            free = (at for at in _places(self.page) if at not in self._models)
            place = next(free, None)
            if place is not None:
                self._models[place] = model
                self.page[place : place + NOTE_BYTES] = digest
        try:
            yield
        finally:
            with self._lock:
                if place is not None:
                    self._clear(place)

    def forget(self, but_of: Path | None = None) -> None:
        """Let no attempt count but those of the model ``but_of``, because this worker ends on
        purpose."""
        with self._lock:
            for place in [at for at, model in self._models.items() if model != but_of]:
                self._clear(place)

    def _clear(self, place: int) -> None:
        self.page[place : place + NOTE_BYTES] = _NOTHING
        self._models.pop(place, None)


def new_page() -> mmap.mmap:
    """Return an empty page that is shared with processes forked later."""
    return mmap.mmap(-1, mmap.PAGESIZE)


def _places(page: mmap.mmap) -> range:
    return range(0, len(page), NOTE_BYTES)


ATTEMPTS = Attempts()
"""Those of this process."""


@contextlib.contextmanager
def exchange_attempt(
    model: Path,
    tuning: SessionTuning = SessionTuning(),  # noqa: B008  # immutable
    most_deaths: int = MOST_DEATHS,
    *,
    keeps_deaths: bool = False,
    kind: str = "",
) -> Iterator[bool]:
    """Open a context around an exchange; it yields whether the exchange may be tried. The model's
    deaths are forgotten when the exchange has ended, with or without an error, unless
    ``keeps_deaths``: another exchange follows. ``kind``: those of a kind count by themselves.

    If the deaths cannot be read, it may be tried. A load may start with optimised sessions, too:
    if a worker died of that, the next load starts without."""
    try:
        note = note_of(model, _DEATHS, tuning)
        if kind:
            name = hashlib.blake2b(f"{kind} {note.name}".encode(), digest_size=NOTE_BYTES)
            note = note.with_name(name.hexdigest())
        deaths = _read(note)
    except (OSError, ValueError, InvalidModelError):
        yield True
        return
    if deaths >= most_deaths:
        yield False
        return
    try:
        with ATTEMPTS.under_way(model, bytes.fromhex(note.name)):
            yield True
    finally:
        if not keeps_deaths:
            with contextlib.suppress(OSError):
                note.unlink()


def end_attempts(page: mmap.mmap, *, has_died: bool) -> None:
    """Empty the page of a worker that has ended. ``has_died``: its attempts may be the reason, so
    each counts as a death of its model.

    Called by the supervisor. A count that cannot be written is left out.
    """
    digests = {bytes(page[at : at + NOTE_BYTES]) for at in _places(page)} - {_NOTHING}
    page[:] = bytes(len(page))
    for digest in digests if has_died else ():
        note = cache_directory() / _DEATHS / digest.hex()
        with contextlib.suppress(OSError, ValueError):
            deaths = _read(note)
            make_private(note.parent)
            note.write_text(str(deaths + 1))


def _read(note: Path) -> int:
    """Return the number in the note; 0: there is none. Raises OSError, ValueError."""
    try:
        return int(note.read_text() or "0")
    except FileNotFoundError:
        return 0
