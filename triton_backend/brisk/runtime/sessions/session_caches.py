"""A session's learned caches, replaced while they serve; one exit thread serves all sessions.

The two ``bring`` methods run in any thread that has a new version. The worker's main thread does
everything else. A frame keeps the version that it started with, so a swap falls between requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING

from brisk.exits.guarantee.audit import TrialResult, VersionTrial
from brisk.runtime.log import LOGGER
from brisk.segments.values import Value

if TYPE_CHECKING:
    from brisk.exits.cascade import Cascade
    from brisk.exits.serving.exit_thread import ExitThread
    from brisk.exits.serving.frame import ExitingFrame
    from brisk.runtime.sessions.served_caches import ServedCaches


class Change(str, Enum):
    """A decision on a version, for the thread that owns the files.

    ``WITHDRAWN``: rolled back when the version before it is not in memory.
    """

    PROMOTED = "promoted"
    REJECTED = "rejected"
    ROLLED_BACK = "rolled back"
    WITHDRAWN = "withdrawn"


class SessionCaches:
    """One session's versions: one is served, another may be on trial. At first there is none."""

    def __init__(self) -> None:
        self.were_brought = False
        """Whether a version was ever brought; before that there is nothing to ask."""
        self.collects = False
        """Whether samples of the runs are wanted, because there are no caches yet."""
        self.learning = ""
        """A text about the progress of learning from the traffic alone."""
        self._served: ServedCaches | None = None
        self._predecessor: ServedCaches | None = None
        self._candidate: ServedCaches | None = None
        self.trial = VersionTrial()
        """The trial of the candidate, if there is one. Used only by the main thread."""
        self._arrived: deque[tuple[ServedCaches | None, bool]] = deque()
        self.changes: deque[Change] = deque()
        """The main thread's decisions, for the owner of the files, which empties this."""
        self.news: list[Change] = []
        """The same decisions, until they are counted. Used only by the main thread."""

    def bring(self, version: ServedCaches | None) -> None:
        """Serve ``version`` from the next request on, and forget all others. Any thread."""
        self._arrived.append((version, False))
        self.were_brought = True

    def bring_candidate(self, version: ServedCaches) -> None:
        """Try ``version`` concurrently with the served one. Any thread may call this."""
        self._arrived.append((version, True))
        self.were_brought = True

    @property
    def served(self) -> ServedCaches | None:
        while self._arrived:
            version, is_tried = self._arrived.popleft()
            self._candidate = version if is_tried else None
            repairs = is_tried and version is not None and version.cascade.repairs
            self.trial = VersionTrial(repairs)
            if not is_tried:
                self._served, self._predecessor = version, None
        return self._served

    @property
    def progress(self) -> str:
        """``learning``, unless what was learned is switched off."""
        served = self.served
        if self.learning and served is not None and served.is_off:
            return "off: all exits are switched off until the next load, for cost or promise"
        return self.learning

    @property
    def candidate(self) -> ServedCaches | None:
        return self._candidate

    def start(
        self,
        inputs: Mapping[str, Value],
        requested: Sequence[str],
        agreement: float | None,
    ) -> ExitingFrame | None:
        """Return a frame that may answer early, or None if nothing keeps ``agreement``.

        Raises InvalidRequestError if the inputs do not fit the model.
        """
        if not _are_rows(inputs):
            return None
        version = self._version_for(agreement, len(next(iter(inputs.values()))))
        level = version.cascade.level(agreement) if version is not None else None
        if version is None or level is None:
            return None
        from brisk.exits.serving.frame import ExitingFrame

        return ExitingFrame(
            version.base.program,
            version.cascade,
            version.places,
            level,
            None if version.cascade.synchronous else exit_thread(),
            inputs,
            requested,
            version.switched_off(level.accuracy),
        )

    def _version_for(self, agreement: float | None, rows: int) -> ServedCaches | None:
        """Return the version for a run of ``rows`` rows; None if nothing keeps ``agreement``.

        Where only one of two versions keeps it, that one answers, and no turn is counted. The
        trial learns that the other one saves nothing of these rows: the model would answer them.
        """
        served, candidate = self.served, self._candidate
        able = [
            version
            for version in (served, candidate)
            if version is not None and version.cascade.level(agreement) is not None
        ]
        if candidate is None or not able:
            return able[0] if able else None
        if len(able) > 1:
            return candidate if self.trial.takes_candidate() else served
        (only,) = able
        self.trial.lack(rows, is_candidate=only is served)
        return only

    def version_of(self, cascade: Cascade) -> ServedCaches | None:
        """Return the version with this cascade; None if it is no longer served or on trial."""
        versions = (self.served, self._candidate)
        return next((one for one in versions if one and one.cascade is cascade), None)

    def note(self, frame: ExitingFrame) -> ServedCaches | None:
        """Note a finished run. Return the version that answered; None if it is no longer used."""
        version = self.version_of(frame.cascade)
        if version is None:
            return None
        version.note(frame)
        saving = self.trial.candidate if version is self._candidate else self.trial.present
        rows = frame.rows
        for answer in frame.answers:
            if answer.exit_index is not None:
                saving.add(len(answer.rows), version.saved[answer.exit_index])
                rows -= len(answer.rows)
        saving.add(rows, 0.0)
        self.settle()
        return version

    def refuted(self, version: ServedCaches) -> None:
        """Roll back to the version before ``version``, if any: the audit switched off an exit. One
        that was learned from the traffic alone goes; caches trained by hand stay, without it."""
        if version is self._candidate:
            self._reject("its promise is refuted")
        elif version is self._served and self._predecessor is not None:
            self._served, self._predecessor = self._predecessor, None
            self._announce(Change.ROLLED_BACK, version, "its promise is refuted")
        elif version is self._served and version.may_be_withdrawn:
            version.may_be_withdrawn = False
            self._announce(Change.WITHDRAWN, version, "its promise is refuted")

    def settle(self) -> None:
        """End the trial of a candidate when there are enough results to judge it."""
        candidate, trial = self._candidate, self.trial
        if candidate is None:
            return
        verdict = trial.verdict(candidate.audit.audited)
        if verdict is TrialResult.OPEN:
            return
        figures = f"it saves {trial.candidate.mean:.1%} of the model, the one before "
        if verdict is TrialResult.WORSE:
            self._reject(f"{figures}{trial.present.mean:.1%}")
            return
        figures += "too boldly" if trial.repairs else f"{trial.present.mean:.1%}"
        version, self._candidate = self._candidate, None
        assert version is not None
        self._predecessor, self._served = self._served, version
        self._announce(Change.PROMOTED, version, figures)

    def _reject(self, reason: str) -> None:
        version, self._candidate = self._candidate, None
        assert version is not None
        self._announce(Change.REJECTED, version, reason)

    def _announce(self, change: Change, version: ServedCaches, reason: str) -> None:
        self.changes.append(change)
        self.news.append(change)
        LOGGER.warning(
            f"learned caches, revision {version.cascade.revision}, are {change.value}: {reason}"
        )


@cache
def exit_thread() -> ExitThread:
    """Return the worker's only exit thread; the first call starts it."""
    from brisk.exits.serving.exit_thread import ExitThread

    return ExitThread()


def _are_rows(inputs: Mapping[str, Value]) -> bool:
    """Return whether every input is a tensor with the same number of rows, at least one."""
    counts = {len(value) if value.ndim else 0 for value in inputs.values()}
    return len(counts) == 1 and 0 not in counts
