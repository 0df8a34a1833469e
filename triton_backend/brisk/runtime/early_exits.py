"""A session's learned caches: read last, looked up in one lane for all sessions, replaced live.

``read_version`` and the two ``bring`` run in whatever thread has a new version; everything else is
the worker's main thread's. A frame keeps the version that it started with, so a swap falls between
requests.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from pathlib import Path

import torch

from brisk.execution import LoadedProgram
from brisk.exits.artefact import digest_of, read_cascade
from brisk.exits.audit import CascadeAudit
from brisk.exits.cascade import Cascade
from brisk.exits.container import DamagedFileError
from brisk.exits.proving import Trial, Verdict
from brisk.exits.serving import Answer, ExitingFrame, LookUpLane, Places, find_places
from brisk.runtime.saying import say
from brisk.solutions.base import Value
from brisk.telemetry.incidents import INCIDENTS
from brisk.wire.records import ExitStatus


@dataclass(slots=True)
class Tally:
    """Of runs that are finished: rows that could have been answered early, and were, by exit."""

    rows: int = 0
    answered: Counter[int] = field(default_factory=Counter)
    has_failed: bool = False
    """Whether a look-up has raised something, which is told once."""


@dataclass(frozen=True, slots=True, eq=False)
class ServedCaches:
    """One version of a model's caches, where they sit in its program, and what came of them.

    ``spared``: by exit, the share of the model's layers behind it. ``audit`` and ``tally`` are the
    worker's main thread's.
    """

    cascade: Cascade
    places: Places
    spared: tuple[float, ...]
    audit: CascadeAudit
    tally: Tally = field(default_factory=Tally)

    @classmethod
    def of(cls, cascade: Cascade, loaded: LoadedProgram) -> ServedCaches:
        """Raises DamagedFileError where ``cascade`` is of another program."""
        places = find_places(loaded, cascade)
        if places is None or not cascade.levels:
            raise DamagedFileError("its exits are not boundaries of the program; train again")
        layers = len(loaded.program.layers)
        spared = tuple(1 - exit_.point.position / layers for exit_ in cascade.exits)
        return cls(cascade, places, spared, CascadeAudit(cascade.levels[0].accuracy))

    def exits(self) -> tuple[ExitStatus, ...]:
        """What each exit has come to."""
        found = []
        for index, exit_ in enumerate(self.cascade.exits):
            audit = self.audit.exits.get(index)
            audited, agreed = (0, 0) if audit is None else (audit.audited, audit.agreed)
            is_off = index in self.audit.switched_off
            answered = self.tally.answered[index]
            found.append(ExitStatus(exit_.name, answered, audited, agreed, is_off))
        return tuple(found)


class Change(str, Enum):
    """What has become of a version, for whoever keeps the files."""

    PROMOTED = "promoted"
    REJECTED = "rejected"
    ROLLED_BACK = "rolled back"


def read_version(model_file: Path, path: Path, loaded: LoadedProgram) -> ServedCaches | None:
    """The caches in ``path``; what does not fit the model is said and ignored."""
    try:
        if loaded.device.type != "cpu":
            raise DamagedFileError("caches are looked up on the CPU only")
        return ServedCaches.of(read_cascade(path, digest_of(model_file)), loaded)
    except FileNotFoundError:
        return None
    except (DamagedFileError, OSError) as error:
        tell(f"caches '{path}' are ignored: {error}")
        return None


def tell(text: str) -> None:
    """In the server's log and in ``brisk status``."""
    say(text)
    INCIDENTS.note(text)


class SessionCaches:
    """The versions of one session: one served, perhaps another on trial; none at first."""

    def __init__(self) -> None:
        self._served: ServedCaches | None = None
        self._predecessor: ServedCaches | None = None
        self._candidate: ServedCaches | None = None
        self._trial = Trial()
        self._arrived: deque[tuple[ServedCaches | None, bool]] = deque()
        self.changes: deque[Change] = deque()
        """What main thread has decided since somebody last emptied it."""

    def bring(self, version: ServedCaches | None) -> None:
        """Any thread: serve ``version`` from the next request on, and forget all others."""
        self._arrived.append((version, False))

    def bring_candidate(self, version: ServedCaches) -> None:
        """Any thread: try ``version`` beside the one that is served."""
        self._arrived.append((version, True))

    @property
    def served(self) -> ServedCaches | None:
        while self._arrived:
            version, is_tried = self._arrived.popleft()
            self._candidate = version if is_tried else None
            self._trial = Trial()
            if not is_tried:
                self._served, self._predecessor = version, None
        return self._served

    @property
    def candidate(self) -> ServedCaches | None:
        return self._candidate

    def start(
        self,
        loaded: LoadedProgram,
        inputs: Mapping[str, Value],
        requested: Sequence[str],
        agreement: float | None,
    ) -> ExitingFrame | None:
        """A frame that may answer early; None where nothing keeps ``agreement``.

        Raises InvalidRequestError where the inputs do not fit the model.
        """
        served = self.served
        if self._candidate is not None and self._trial.takes_candidate():
            served = self._candidate
        level = served.cascade.level(agreement) if served is not None else None
        if served is None or level is None or not _are_rows(inputs):
            return None
        return ExitingFrame(
            loaded,
            served.cascade,
            served.places,
            level,
            None if served.cascade.synchronous else look_up_lane(),
            inputs,
            requested,
            served.audit.switched_off,
        )

    def note(self, cascade: Cascade, rows: int, early: Sequence[Answer]) -> ServedCaches | None:
        """A run of ``rows`` rows is finished, of which ``early`` are answered early.

        Returns the version of ``cascade``; None where it is served no more.
        """
        found = next(
            (one for one in (self.served, self._candidate) if one and one.cascade is cascade), None
        )
        if found is None:
            return None
        found.tally.rows += rows
        saving = self._trial.candidate if found is self._candidate else self._trial.present
        for answer in early:
            assert answer.exit_index is not None
            found.tally.answered[answer.exit_index] += len(answer.rows)
            saving.add(len(answer.rows), found.spared[answer.exit_index])
            rows -= len(answer.rows)
        saving.add(rows, 0.0)
        if self._candidate is not None:
            self._settle_trial()
        return found

    def refuted(self, version: ServedCaches) -> None:
        """The audit has switched an exit of ``version`` off: go back to the one before, if any."""
        if version is self._candidate:
            self._reject("its promise is refuted")
        elif version is self._served and self._predecessor is not None:
            self._served, self._predecessor = self._predecessor, None
            self._announce(Change.ROLLED_BACK, version, "its promise is refuted")

    def _settle_trial(self) -> None:
        verdict, trial = self._trial.verdict, self._trial
        if verdict is Verdict.OPEN:
            return
        figures = (
            f"it spares {trial.candidate.mean:.1%} of the model's layers, "
            f"the one before {trial.present.mean:.1%}"
        )
        if verdict is Verdict.WORSE:
            self._reject(figures)
            return
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
        tell(f"learned caches, revision {version.cascade.revision}, are {change.value}: {reason}")


@cache
def look_up_lane() -> LookUpLane:
    """The worker's one lane, begun with the first look-up."""
    return LookUpLane()


def _are_rows(inputs: Mapping[str, Value]) -> bool:
    """Whether every input is a tensor with the same number of rows, one at least."""
    counts = {
        len(value) if isinstance(value, torch.Tensor) and value.dim() else 0
        for value in inputs.values()
    }
    return len(counts) == 1 and 0 not in counts
