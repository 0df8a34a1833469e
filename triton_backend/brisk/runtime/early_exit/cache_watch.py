"""Watches the files of learned caches: new versions are learned, noticed, tried, kept or deleted.

A thread checks the files once a second. In the foreground worker it starts the adaptation process
and tries the candidates that the process publishes. In the background worker it only serves
versions that have proved themselves.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from brisk.errors import UnavailableError
from brisk.exits.files.learning_record import Aim, stamp_text
from brisk.exits.files.versions import (
    adapted_file,
    candidate_file,
    idle_s,
    is_candidate_outdated,
    latest,
    learned_file,
    note_use,
    private_folder,
    private_folders,
    promote,
    take_back,
)
from brisk.runtime.early_exit.adaptation import Adaptation
from brisk.runtime.early_exit.first_learning import FirstLearning, is_trained_by_hand
from brisk.runtime.early_exit.kept_inputs import delete_inputs, remove_abandoned
from brisk.runtime.log import LOGGER
from brisk.runtime.sessions.segment_session import SegmentSession
from brisk.runtime.sessions.session import Session
from brisk.runtime.sessions.session_caches import Change
from brisk.runtime.settings import Settings

if TYPE_CHECKING:
    from brisk.runtime.sessions.served_caches import ServedCaches


LOOK_S = 1.0

RESTS = 20.0
"""The rest after a look at a model, by the processor time that it took; at most ``LOOK_S``. Those
at a thousand models would take half of a processor, and the interpreter's lock, from requests."""

RETRY_S = 60.0
"""The time until files that could not be read are read, and looks that fail are told, again."""

LEFT_S = 60.0
"""The time from the load of an entry that asks for nothing, or from the end of one that asked, to
the end of what is kept of the model's traffic."""

SWEPT_EVERY_S = 24 * 3600.0

Stamp = tuple[str, int, int, int] | None
"""Path, inode, size and time of change of a file; None: there is no file."""


class OpenedCaches(NamedTuple):
    """Caches that were read from a file."""

    version: ServedCaches | None
    """None: the file could not be read, and will be again."""
    stamp: Stamp
    """The file as it was before it was read; None if it could not be."""


@dataclass(slots=True, eq=False)
class _Watched:
    """A session whose caches' files are watched."""

    session: SegmentSession
    served: Stamp
    """The file of the served version, as it was read."""
    last: ServedCaches | None
    """The version that was served last, whose segments the next one uses if they fit."""
    waits_until_s: float = 0.0
    """When its files are read again after one could not be, by ``time.monotonic``."""
    tried: Stamp = None
    """The file of the last candidate, as it was read."""
    aim: Aim | None = None
    """The aim of learning from the traffic alone; None if nothing is learned."""
    folder: Path = field(init=False)
    """The folder of what is learned, which several sessions of a model share."""

    def __post_init__(self) -> None:
        self.folder = private_folder(self.session.path)


class CacheWatch:
    """Watches the files of learned caches, in a thread of its own.

    ``adaptation``: the process of this worker, which then tries candidates; None: another worker
    has it and tries them.
    ``first``: learns caches of models without any; None: no first caches are learned.
    """

    def __init__(
        self,
        adaptation: Adaptation | None,
        look_s: float = LOOK_S,
        first: FirstLearning | None = None,
    ) -> None:
        self._adaptation = adaptation
        self._first = first
        self._look_s = look_s
        self._lock = threading.Lock()
        self._watched: list[_Watched] = []
        self._left: list[tuple[Session, float]] = []
        """Sessions whose entries ask for nothing to be learned, and when they were loaded, or
        when another entry of the file last asked."""
        self._swept_s = -math.inf
        """When folders of models that are gone were last looked for."""
        self._newest: dict[Path, _Watched] = {}
        """The last that learns of those with one folder, which alone decides what is learned."""
        self._thread: threading.Thread | None = None
        self._warned_s: dict[str, float] = {}
        """The last warnings, and when each was logged."""

    def open(self, session: Session, aim: Aim | None = None) -> OpenedCaches | None:
        """Read the session's caches. Any thread.

        Return None if no caches fit, or if they were learned and nobody asks for that (``aim`` is
        None), or for something else (``is_asked_for``).
        """
        path = latest(session.path)
        if not path.exists():
            return None
        if not isinstance(session, SegmentSession):
            LOGGER.warning(
                f"caches '{path}' are ignored: ONNX Runtime's segments alone have exits"
            )
            return None
        try:
            stamp = _stamp(path)
            version = _kept_to(aim, session.path, _read(session, path, None))
        except (OSError, UnavailableError) as error:
            LOGGER.warning(f"caches '{path}' cannot be read now: {error}")
            return OpenedCaches(None, None)
        return None if version is None else OpenedCaches(version, stamp)

    def serve(self, session: Session, caches: OpenedCaches, aim: Aim | None = None) -> None:
        """Serve ``caches`` from now on, and watch their files. Any thread.

        ``aim``: the aim of learning from the traffic; ignored if caches were trained by hand.
        Precondition: ``open`` has read ``caches``.
        """
        assert isinstance(session, SegmentSession)
        if caches.version is not None:
            session.caches.bring(caches.version)
        if is_trained_by_hand(session.path):
            aim = None
        elif aim is not None:
            aim = _of_loaded(aim, session)
            if self._first is not None and caches.version is not None:
                _try(session, self._first.keep, aim)
        self._follow(_Watched(session, caches.stamp, caches.version, aim=aim))

    def collect(self, session: Session, aim: Aim | None) -> None:
        """Learn caches for ``aim`` from the session's traffic, and serve them. Any thread.

        Without an aim, delete what is kept of the traffic unless another session has one.
        Precondition: no caches fit the session. Without ``first`` this does nothing.
        """
        if self._first is None:
            return
        if aim is None:
            if self._adaptation is not None and private_folders().is_dir():
                with self._lock:
                    self._left.append((session, time.monotonic()))
                    self._begin()
        elif not isinstance(session, SegmentSession):
            session.caches.learning = (
                "not for this model: ONNX Runtime's segments alone have exits"
            )
        elif is_trained_by_hand(session.path):
            session.caches.learning = "off: caches that do not fit lie beside the model"
        else:
            aim = _of_loaded(aim, session)
            if session.starting.source.is_of(session.path):
                _try(session, self._first.begin, aim)
            self._follow(_Watched(session, None, None, aim=aim))

    def _follow(self, watched: _Watched) -> None:
        with self._lock:
            self._watched.append(watched)
            self._begin()

    def _begin(self) -> None:
        """Start the thread unless it runs. The lock is held."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="brisk-caches", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            time.sleep(self._look_s)
            self._look_at_all()  # whose names hold no session while this thread sleeps

    def _look_at_all(self) -> None:
        with self._lock:
            self._watched = [each for each in self._watched if not each.session.table.is_closed]
            watched = list(self._watched)
        self._newest = {each.folder: each for each in watched if each.aim is not None}
        for each in (one for one in watched if not one.session.table.is_closed):
            begun_s = time.thread_time()
            try:
                self._look(each)
            except Exception as error:  # noqa: BLE001  # other models' go on
                self._warn(f"caches of {each.session.path}: {type(error).__name__}: {error}")
            time.sleep(min(RESTS * (time.thread_time() - begun_s), self._look_s))
        if self._first is not None:
            self._first.forget({each.session.path for each in watched if each.aim})
        if self._adaptation is not None:
            try:
                self._adaptation.look(each.session.path for each in watched)
            except OSError as error:
                self._warn(f"learned caches cannot learn: {error}")
            try:
                self._delete_inputs(watched)
            except OSError as error:
                self._warn(f"inputs that nobody learns from cannot be deleted: {error}")

    def _warn(self, text: str) -> None:
        """Log a warning, unless it was logged within ``RETRY_S``."""
        now_s, before = time.monotonic(), self._warned_s
        self._warned_s = {each: at_s for each, at_s in before.items() if now_s - at_s < RETRY_S}
        if text not in self._warned_s:
            self._warned_s[text] = now_s
            LOGGER.warning(text)

    def _delete_inputs(self, watched: list[_Watched]) -> None:
        """Delete inputs of which nobody asks to learn any more, and once a day what belongs to
        models that are gone. Raises OSError.

        A session's predecessor, which may have asked, is closed some time after its load; other
        entries of the model are loaded beside it.
        """
        now_s, asking = time.monotonic(), {each.folder for each in watched}
        with self._lock:
            left = [
                (session, now_s if private_folder(session.path) in asking else at_s)
                for session, at_s in self._left
                if not session.table.is_closed
            ]
            self._left = left
        for session in [each for each, at_s in left if now_s - at_s >= LEFT_S]:
            if idle_s(session.path) < LEFT_S:  # another runtime learns of it
                continue
            note_use(session.path)
            delete_inputs(session.path)
            with self._lock:
                self._left = [each for each in self._left if each[0] is not session]
        if now_s - self._swept_s >= SWEPT_EVERY_S:
            self._swept_s = now_s
            remove_abandoned(each.session.path for each in watched)

    def _look(self, watched: _Watched) -> None:
        session = watched.session
        if watched.aim is not None and self._first is not None:
            newest = self._newest[watched.folder]
            progress = False, f"off: another entry of this file asks for {newest.aim}"
            if newest.aim == watched.aim:
                progress = self._first.look(session.path, watched.aim, session.threads)
            session.caches.collects, session.caches.learning = progress
        if self._first is not None and not self._first.is_on:
            self._first.drop(session.path)
        while session.caches.changes:
            change = session.caches.changes.popleft()
            if change is Change.WITHDRAWN and _withdrew_learned(watched):
                continue  # by either worker: the other one sees that the file is gone
            if self._adaptation is None:
                continue  # only the foreground worker changes the other files
            if change is Change.PROMOTED and is_candidate_outdated(session.path):
                continue  # other caches have been written since: they are read below
            _keep(session.path, change)
            if change is Change.PROMOTED:  # served already
                watched.served = _stamp(adapted_file(session.path))
            elif change is Change.ROLLED_BACK:
                watched.served = _stamp(latest(session.path))
        if time.monotonic() < watched.waits_until_s:
            return
        try:
            self._look_at_files(watched)
        except Exception:
            watched.waits_until_s = time.monotonic() + RETRY_S
            raise

    def _look_at_files(self, watched: _Watched) -> None:
        """Serve the latest version, and try the candidate, if they are others than before."""
        session = watched.session
        path = latest(session.path)
        stamp = _stamp(path)
        if stamp != watched.served:
            found = _read(session, path, watched.last)
            watched.served = stamp
            version = _kept_to(watched.aim, session.path, found)
            if found is not None or stamp is None:  # else they cannot be read: the last go on
                watched.last, watched.tried = version, None
                session.caches.bring(version)  # which forgets the candidate: it is tried again
                what = "gone" if found is None else "not what the entry asks for, and not served"
                what = what if version is None else "served"
                LOGGER.info(f"caches '{path}' are {what} from now on")
        if self._adaptation is not None:
            self._try_candidate(watched)

    def _try_candidate(self, watched: _Watched) -> None:
        session = watched.session
        path = candidate_file(session.path)
        if is_candidate_outdated(session.path):
            LOGGER.info(f"caches '{path}' are deleted: the version that they were made of is gone")
            path.unlink(missing_ok=True)
            return
        stamp = _stamp(path)
        if stamp is None or stamp == watched.tried:
            return
        if not session.starting.source.is_of(session.path):
            return  # it may be of the model's new file: the next load tries it
        version = _kept_to(watched.aim, session.path, _read(session, path, watched.last))
        watched.tried = stamp
        if version is None:
            path.unlink(missing_ok=True)
            return
        session.caches.bring_candidate(version)


def cache_watch(settings: Settings, *, is_foreground: bool) -> CacheWatch:
    """Return a worker's watch; only the foreground worker's learns and tries versions."""
    is_on = settings.sampled_share > 0
    return CacheWatch(
        Adaptation(settings.adaptation_s) if is_foreground else None,
        first=FirstLearning(settings.sample_bytes, is_on=is_on, learns=is_foreground),
    )


def _read(session: SegmentSession, path: Path, last: ServedCaches | None) -> ServedCaches | None:
    from brisk.runtime.sessions.served_caches import read_version

    return read_version(session.path, path, session.starting, session.threads, last)


def _of_loaded(aim: Aim, session: SegmentSession) -> Aim:
    """Return ``aim`` for the file that the session has loaded, whatever lies in its place now."""
    return aim._replace(model_stamp=stamp_text(session.starting.source.own_stamp))


def _try(session: SegmentSession, note: Callable[[Path, Aim], None], aim: Aim) -> None:
    """Note a load in the files of what is learned; a load does not fail with them."""
    try:
        note(session.path, aim)
    except OSError as error:
        LOGGER.warning(f"early answers of {session.path}: {type(error).__name__}: {error}")


def _kept_to(aim: Aim | None, model: Path, version: ServedCaches | None) -> ServedCaches | None:
    """Return ``version``; None if it was learned, but not for ``aim`` (``is_asked_for``)."""
    if version is None or is_trained_by_hand(model):
        return version
    if aim is None:
        return None
    from brisk.exits.cascade import is_asked_for  # imported already by who has caches

    return version if is_asked_for(version.cascade, version.base.graph, aim) else None


def _withdrew_learned(watched: _Watched) -> bool:
    """Whether the version served is the one learned from the traffic alone; its file is deleted
    then, unless another one has been learned since. The next load learns anew."""
    learned = learned_file(watched.session.path)
    if watched.served is None or watched.served[0] != str(learned):
        return False
    if _stamp(learned) == watched.served:
        learned.unlink(missing_ok=True)
    return True


def _keep(model: Path, change: Change) -> None:
    """Apply ``change`` to the files of the model's caches; missing files are ignored."""
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
