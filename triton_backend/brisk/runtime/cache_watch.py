"""Versions of learned caches as files: new ones made, noticed, tried, kept or deleted.

A thread of its own, which looks at the files once a second. The foreground worker's has the
adaptation process made and tries what that publishes; the background worker's only follows what
has proved itself.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from brisk.errors import BriskError
from brisk.exits.versions import candidate_file, latest, promote, take_back
from brisk.runtime.adaptation import Adaptation
from brisk.runtime.early_exits import Change
from brisk.runtime.saying import say
from brisk.runtime.session import Session

if TYPE_CHECKING:
    from brisk.runtime.served_caches import ServedCaches
    from brisk.runtime.torch_session import TorchSession

LOOK_S = 1.0

Stamp = tuple[str, int, int, int] | None
"""Path, inode, size and time of change of a file; None where there is none."""


@dataclass(slots=True, eq=False)
class _Watched:
    """``served`` and ``tried``: the files as they were when they were read last.

    ``cuts``: where the session's joined layers stop.
    """

    session: TorchSession
    served: Stamp
    cuts: frozenset[int]
    tried: Stamp = None


class CacheWatch:
    """``adaptation``: of this worker, which then tries candidates; None where another one does."""

    def __init__(self, adaptation: Adaptation | None, look_s: float = LOOK_S) -> None:
        self._adaptation = adaptation
        self._look_s = look_s
        self._lock = threading.Lock()
        self._watched: list[_Watched] = []
        self._thread: threading.Thread | None = None

    def open(self, session: Session) -> ServedCaches | None:
        """Read the session's caches; None where there are none that fit. Any thread.

        The caller joins layers so that they stop at the exits, and then calls ``serve``.
        """
        if not latest(session.path).exists():
            return None
        from brisk.runtime.served_caches import read_version
        from brisk.runtime.torch_session import TorchSession

        if not isinstance(session, TorchSession):
            return None
        return read_version(session.path, latest(session.path), session.loaded)

    def serve(self, session: TorchSession, caches: ServedCaches) -> None:
        """Serve them from now on, and follow what becomes of their files. Any thread."""
        session.caches.bring(caches)
        stamp = _stamp(latest(session.path))
        watched = _Watched(session, stamp, frozenset(caches.cascade.cuts))
        with self._lock:
            self._watched.append(watched)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="brisk-caches", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(self._look_s)
            with self._lock:
                self._watched = [
                    each for each in self._watched if not each.session.table.is_closed
                ]
                watched = list(self._watched)
            for each in watched:
                try:
                    self._look(each)
                except (OSError, BriskError) as error:
                    say(f"caches of {each.session.path}: {type(error).__name__}: {error}")
            if self._adaptation is not None:
                self._learn(self._adaptation, watched)

    def _learn(self, adaptation: Adaptation, watched: Sequence[_Watched]) -> None:
        try:
            adaptation.look(each.session.path for each in watched)
        except OSError as error:
            say(f"learned caches cannot learn: {error}")

    def _look(self, watched: _Watched) -> None:
        from brisk.runtime.served_caches import read_version

        session = watched.session
        while session.caches.changes:
            change = session.caches.changes.popleft()
            if self._adaptation is None:
                continue  # the files are the foreground worker's
            _keep(session.path, change)
            if change is not Change.WITHDRAWN:  # what is served then is still to be read
                watched.served = _stamp(latest(session.path))
        path = latest(session.path)
        stamp = _stamp(path)
        if stamp != watched.served:
            watched.served = stamp
            version = read_version(session.path, path, session.loaded)
            if version is not None or stamp is None:
                self._stop_at(watched, version)
                session.caches.bring(version)
                say(f"caches '{path}' are {'gone' if version is None else 'served'} from now on")
        if self._adaptation is not None:
            self._try_candidate(watched)

    def _try_candidate(self, watched: _Watched) -> None:
        from brisk.runtime.served_caches import read_version

        session = watched.session
        path = candidate_file(session.path)
        stamp = _stamp(path)
        if stamp is None or stamp == watched.tried:
            return
        watched.tried = stamp
        version = read_version(session.path, path, session.loaded)
        if version is None:
            path.unlink(missing_ok=True)
            return
        self._stop_at(watched, version)
        session.caches.bring_candidate(version)

    def _stop_at(self, watched: _Watched, version: ServedCaches | None) -> None:
        """Have joined layers stop at the exits of ``version``, too."""
        cuts = watched.cuts | frozenset(() if version is None else version.cascade.cuts)
        starting = watched.session.starting
        if cuts != watched.cuts and starting.table.is_whole:
            joined = starting.source.join(tuple(starting.table.current()), cuts)
            starting.table.switch({}, joined)
            watched.cuts = cuts


def _keep(model: Path, change: Change) -> None:
    """Let the files say what was decided; what is gone already is fine."""
    with contextlib.suppress(FileNotFoundError):
        if change is Change.PROMOTED:
            promote(model)
        elif change is Change.REJECTED:
            candidate_file(model).unlink()
        else:
            take_back(model)


def _stamp(path: Path) -> Stamp:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return str(path), status.st_ino, status.st_size, status.st_mtime_ns
