"""Early answers that are compared with the whole model's: sampled here, computed by the auditor.

Used by the worker's main thread, which copies the inputs of what is sampled and reads verdicts:
the whole model runs in a process that gets only what all others leave
(``brisk.runtime.early_exit.auditor``).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from brisk import telemetry
from brisk.runtime.early_exit.auditor import Auditor, Question
from brisk.runtime.early_exit.cached_run import CachedRun
from brisk.runtime.log import tell
from brisk.runtime.models.session import Session
from brisk.telemetry import metrics

if TYPE_CHECKING:
    from brisk.exits.serving.frame import Answer
    from brisk.runtime.early_exit.served_caches import ServedCaches

AUDITED_SHARE = 0.05
"""Of runs; an audit is of the rows that one run answered early."""

TRIED_SHARE = 0.5
"""Of the runs of a version on trial, which nothing but validation has shown to be right yet."""


@dataclass(frozen=True, slots=True, eq=False)
class Audit:
    """``classes`` int64 [rows]: what was answered to the question's inputs, by ``exits``."""

    session: Session
    served: ServedCaches
    labels: tuple[str, str]
    question: Question
    classes: np.ndarray
    exits: tuple[int, ...]


class Audits:
    """Counts what exits answer, and takes samples of it to the auditor."""

    def __init__(
        self, auditor: Auditor[Audit], share: float = AUDITED_SHARE, seed: int | None = None
    ) -> None:
        self._auditor = auditor
        self._share = share
        self._random = random.Random(seed)

    def keep(self, runs: Iterable[CachedRun]) -> list[Audit]:
        """Before the last answer of a run is sent, while its inputs are there: copies of some."""
        found = []
        for run in runs:
            if run.frame.has_early_answers and self._auditor.has_room:
                served = run.session.caches.version_of(run.frame.cascade)
                is_tried = served is not None and served is run.session.caches.candidate
                share = max(self._share, TRIED_SHARE) if is_tried else self._share
                if served is not None and self._random.random() < share:
                    audit = _make_audit(run, served)
                    found += [] if audit is None else [audit]
        return found

    def note(self, runs: Iterable[CachedRun], kept: Iterable[Audit]) -> None:
        """Runs are finished: count what was answered early, and ask about what was kept."""
        for run in runs:
            _count(run)
        for audit in kept:
            self._auditor.ask(audit.question, audit)

    def settle(self) -> None:
        """Draw the consequences of the verdicts that have come."""
        while (verdict := self._auditor.take()) is not None:
            audit, classes = verdict
            if len(classes) == len(audit.exits):
                _judge(audit, classes)


def _count(run: CachedRun) -> None:
    frame, session, labels = run.frame, run.session, run.labels
    early = _early(frame.answers)
    telemetry.count(metrics.CACHED_ROWS, labels, frame.rows)
    for answer in early:
        name = frame.exit_name(answer.exit_index)
        telemetry.count(metrics.EARLY_ANSWERS, (*labels, name), len(answer.rows))
    served = session.caches.note(frame)
    if served is None:
        return
    if frame.error is not None and not served.tally.has_failed:
        served.tally.has_failed = True
        tell(f"model '{labels[0]}': a look-up of its caches failed: {frame.error!r:.200}")
    _count_changes(session, labels)
    for index in served.review():
        name = frame.exit_name(index)
        telemetry.count(metrics.SWITCHED_OFF_EXITS, (*labels, name, "cost"))
        tell(f"model '{labels[0]}': exit {name} is switched off: {served.costly[index]}")


def _judge(audit: Audit, classes: Sequence[int]) -> None:
    cascade, model = audit.served.cascade, audit.labels[0]
    for index, ours, whole in zip(audit.exits, audit.classes.tolist(), classes, strict=True):
        name = cascade.exits[index].name
        verdict = "agrees" if ours == whole else "differs"
        telemetry.count(metrics.AUDITED_ANSWERS, (*audit.labels, name, verdict))
        if audit.served.audit.note(index, ours == whole):
            telemetry.count(metrics.SWITCHED_OFF_EXITS, (*audit.labels, name, "promise"))
            tell(
                f"model '{model}': exit {name} is switched off, its live agreement "
                f"refutes the promise of {cascade.levels[0].accuracy:.1%}"
            )
            audit.session.caches.refuted(audit.served)
    audit.session.caches.settle()
    _count_changes(audit.session, audit.labels)


def _count_changes(session: Session, labels: tuple[str, str]) -> None:
    """Versions that have been promoted, rejected or taken back since the last time."""
    for change in session.caches.news:
        telemetry.count(metrics.CACHE_VERSIONS, (*labels, change.value))
    session.caches.news.clear()


def _early(answers: Sequence[Answer]) -> list[Answer]:
    return [answer for answer in answers if answer.exit_index is not None]


def _make_audit(run: CachedRun, served: ServedCaches) -> Audit | None:
    """Of the rows that were answered early; None where numpy has no such inputs."""
    early = _early(run.frame.answers)
    rows = np.array([row for answer in early for row in answer.rows])
    inputs = {}
    for name, value in run.inputs.items():
        if value.dtype.isbuiltin != 1 or value.dtype.kind == "O":
            return None
        inputs[name] = value[rows]
    cascade = served.cascade
    return Audit(
        run.session,
        served,
        run.labels,
        Question(run.session.path, cascade.model_digest, cascade.scores, inputs),
        np.concatenate([answer.classes for answer in early]),
        tuple(answer.exit_index or 0 for answer in early for _ in answer.rows),
    )
