"""Watches the files of learned caches: new versions are learned, noticed, tried, kept or deleted.

A thread checks the files once a second. In the foreground worker it starts the adaptation process
and tries the candidates that the process publishes. In the background worker it only serves
versions that have proved themselves.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from brisk.errors import InvalidModelError, UnavailableError
from brisk.exits.files.container import digest_at_end
from brisk.exits.files.learning_record import Aim, stamp_text
from brisk.exits.files.versions import (
    adapted_file,
    candidate_file,
    is_candidate_outdated,
    latest,
    private_folder,
    promote,
    reference_file,
    samples_folder,
    take_back,
    trained_file,
)
from brisk.runtime.early_exit.first_learning import FirstLearning, is_trained_by_hand
from brisk.runtime.helper_process import HelperProcess
from brisk.runtime.log import LOGGER
from brisk.runtime.sessions.segment_session import SegmentSession
from brisk.runtime.sessions.session import Session
from brisk.runtime.sessions.session_caches import Change
from brisk.runtime.settings import Settings

if TYPE_CHECKING:
    from brisk.runtime.sessions.served_caches import ServedCaches


_PROCESS = "brisk.runtime.early_exit.adaptation_process"


class Adaptation:
    """Runs the adaptation process, one for all models; none if ``interval_s`` is 0.

    The interval is the time between two retrainings, and the least time from the start of a
    process that failed to the start of the next process.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._process = HelperProcess(_PROCESS)
        self._task: tuple[tuple[str, str], ...] = ()
        """The models of the process, each with the digest of its trained caches."""
        self._is_done = False

    @property
    def process_id(self) -> int | None:
        """The id of the adaptation process; None if it is not running."""
        return self._process.process_id

    def look(self, models: Iterable[Path]) -> None:
        """Keep a process running for exactly those of ``models`` whose caches can learn."""
        task = (
            tuple(sorted(filter(None, map(_learnable, set(models))))) if self._interval_s else ()
        )
        if task != self._task:
            self.end()
            self._task, self._is_done = task, False
            if task and find_spec("torch") is None:
                self._is_done = True
                LOGGER.info(
                    "learned caches stay as they were trained: to learn from the traffic takes "
                    f"torch, which {sys.executable} does not have (brisk-triton[train])"
                )
        if self._process.process_id is not None:
            status = self._process.ended()
            if status is None:
                return
            self._is_done = status == 0
            if status:
                LOGGER.warning(f"the adaptation of learned caches ended with status {status}")
        if task and not self._is_done and self._process.age_s >= self._interval_s:
            self._process.start("--interval", str(self._interval_s), *(model for model, _ in task))

    def end(self) -> None:
        """End the process. The files that it publishes are complete wherever it is ended."""
        if self._process.process_id is not None:
            self._process.end()
            self._process = HelperProcess(_PROCESS)  # a new one may start at once


def _learnable(model: Path) -> tuple[str, str] | None:
    """Return the model and the digest of its trained caches. Return None unless it has caches,
    their training data, and samples."""
    try:
        trained = digest_at_end(trained_file(model))
    except (FileNotFoundError, InvalidModelError):
        return None
    if not reference_file(model).exists() or not any(samples_folder(model).glob("*.npz")):
        return None
    return str(model), trained


LOOK_S = 1.0

RETRY_S = 60.0
"""The time after which files are read again where one could not be."""

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
        self._newest: dict[Path, _Watched] = {}
        """The last that learns of those with one folder, which alone decides what is learned."""
        self._thread: threading.Thread | None = None

    def open(self, session: Session, aim: Aim | None = None) -> OpenedCaches | None:
        """Read the session's caches. Any thread.

        Return None if no caches fit, or if they were learned and nobody asks for that (``aim`` is
        None), for another tolerance, or with a smaller model that the aim no longer has.
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

    def collect(self, session: Session, aim: Aim) -> None:
        """Learn caches for ``aim`` from the session's traffic, and serve them. Any thread.

        Precondition: no caches fit the session. Without ``first`` this does nothing.
        """
        if self._first is None:
            return
        if not isinstance(session, SegmentSession):
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
            self._newest = {each.folder: each for each in watched if each.aim is not None}
            for each in watched:
                try:
                    self._look(each)
                except Exception as error:  # noqa: BLE001  # other models' go on
                    LOGGER.warning(
                        f"caches of {each.session.path}: {type(error).__name__}: {error}"
                    )
            if self._first is not None:
                self._first.forget({each.session.path for each in watched if each.aim})
            if self._adaptation is not None:
                try:
                    self._adaptation.look(each.session.path for each in watched)
                except OSError as error:
                    LOGGER.warning(f"learned caches cannot learn: {error}")

    def _look(self, watched: _Watched) -> None:
        session = watched.session
        if watched.aim is not None and self._first is not None:
            newest = self._newest[watched.folder]
            progress = False, f"off: another entry of this file asks for {newest.aim}"
            if newest.aim == watched.aim:
                progress = self._first.look(session.path, watched.aim, session.threads)
            session.caches.collects, session.caches.learning = progress
        while session.caches.changes:
            change = session.caches.changes.popleft()
            if self._adaptation is None:
                continue  # only the foreground worker changes the files
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
                watched.last = version
                session.caches.bring(version)
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
    """Return ``version``; None if it was learned, but not for ``aim``: nobody asks for it, or for
    another tolerance, or with a smaller model that the aim no longer has."""
    if version is None or is_trained_by_hand(model):
        return version
    if aim is None:
        return None
    from brisk.exits.cascade import SMALLER  # imported already by who has caches

    is_same = str(version.cascade.scores.tolerance or "") == aim.tolerance
    has_smaller = any(exit_.variant == SMALLER for exit_ in version.cascade.exits)
    return version if is_same and (aim.smaller or not has_smaller) else None


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
