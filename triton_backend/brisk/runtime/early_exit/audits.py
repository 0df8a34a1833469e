"""The audit of early answers: a sample of them is compared with the whole model's.

The worker's main thread copies the inputs of sampled runs and reads the verdicts. The whole model
runs in a process of the lowest priority (``brisk.runtime.early_exit.audit_process``), to which a
separate thread puts one question at a time. The process starts with the first question, ends after
some minutes without one, and starts again with the next.
"""

from __future__ import annotations

import json
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from brisk import telemetry
from brisk.runtime.helper_process import HelperProcess
from brisk.runtime.log import LOGGER
from brisk.runtime.sessions.session import CachedRun, Session
from brisk.telemetry import metrics

if TYPE_CHECKING:
    from brisk.exits.scores import Scores
    from brisk.exits.serving.frame import Answer, ExitingFrame
    from brisk.runtime.sessions.served_caches import ServedCaches


MOST_WAITING = 8
"""The most questions that wait; while so many do, no more are asked."""

RESTART_S = 10.0
"""The time from the start of a process that failed to that of the next one."""

Context = TypeVar("Context")


@dataclass(frozen=True, slots=True, eq=False)
class Question:
    """Asks whether early ``answers`` to the rows of ``inputs`` count as the whole model's own.

    ``digest``: the digest of the model's file.
    """

    model: Path
    digest: str
    scores: Scores
    inputs: Mapping[str, np.ndarray]
    answers: tuple[np.ndarray, ...]
    """The scores, [rows, classes]; or the value and the others, [rows, ...] each."""


class Auditor(Generic[Context]):
    """Answers questions in a thread of its own; one other thread uses ``ask`` and ``verdicts``."""

    def __init__(self) -> None:
        self._questions: queue.SimpleQueue[tuple[Question, Context]] = queue.SimpleQueue()
        self.verdicts: deque[tuple[Context, list[bool]]] = deque()
        """Each audit's context, and whether each row's answer agrees; empty if the audit
        failed."""
        self._asked = 0
        self._answered = 0
        self._thread: threading.Thread | None = None
        self._process = HelperProcess("brisk.runtime.early_exit.audit_process", is_asked=True)

    @property
    def waiting(self) -> int:
        """The number of questions without a verdict so far."""
        return self._asked - self._answered

    @property
    def has_room(self) -> bool:
        return self.waiting < MOST_WAITING

    @property
    def process_id(self) -> int | None:
        """The id of the audit process; None if it has not started yet or has ended."""
        return self._process.process_id

    def ask(self, question: Question, context: Context) -> None:
        """Queue ``question``; ``verdicts`` later gets ``context`` with its verdict."""
        self._asked += 1
        self._questions.put((question, context))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="brisk-auditor", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        """Answer questions for as long as the worker lives.

        The kernel ends the audit process when this thread ends.
        """
        while True:
            question, context = self._questions.get()
            agrees: list[bool] = []
            try:
                agrees = self._verdict(question)
            except (OSError, ValueError, MemoryError) as error:
                reason = str(error) or "memory is short"
                LOGGER.warning(f"an audit of {question.model} failed: {reason}")
                self.end()
            self.verdicts.append((context, agrees))
            self._answered += 1
            del question, context  # an unloaded model must not live on here until the next one

    def _verdict(self, question: Question) -> list[bool]:
        """Return the audit process's verdict; start the process first if it is not running.

        Empty if the process reports an error. Raises OSError and ValueError if it does not answer.
        """
        import pickle  # deferred: a worker starts without it

        self._process.ended()  # if it was idle for long
        if self._process.process_id is None:
            time.sleep(max(0.0, RESTART_S - self._process.age_s))
            self._process.start()
        questions, verdicts = self._process.pipes
        asked = question.model, question.digest, question.scores, dict(question.inputs)
        pickle.dump((*asked, question.answers), questions)
        questions.flush()
        line = verdicts.readline()
        if not line:
            raise OSError(f"its process ended with status {self._process.wait()}")
        verdict: list[bool] | str = json.loads(line)
        if isinstance(verdict, str):
            LOGGER.warning(f"an audit of {question.model} failed: {verdict}")
            return []
        return verdict

    def end(self) -> None:
        """End the audit process, if it is running.

        Called by the auditor's own thread, or when no session is served any more.
        """
        self._process.end()


AUDITED_SHARE = 0.05
"""The share of runs that are audited; an audit is of the rows that one run answered early."""

TRIED_SHARE = 0.5
"""The share of audited runs of a version on trial, which only validation has tested so far."""


@dataclass(frozen=True, slots=True, eq=False)
class Audit:
    """An audit of one run, which promised ``accuracy``; ``exits``: the index of the exit that
    answered each row."""

    session: Session
    served: ServedCaches
    labels: tuple[str, str]
    question: Question
    exits: tuple[int, ...]
    accuracy: float


class Audits:
    """Counts the answers of exits, and passes a sample of them to the auditor."""

    def __init__(
        self, auditor: Auditor[Audit], share: float = AUDITED_SHARE, seed: int | None = None
    ) -> None:
        self._auditor = auditor
        self._share = share
        self._random = random.Random(seed)
        self.verdicts = auditor.verdicts

    def keep(self, runs: Iterable[CachedRun]) -> list[Audit]:
        """Choose some ``runs`` to audit; return their audits, with copies of the inputs.

        Called before the last answer of a run is sent, while its inputs exist.
        """
        found = []
        for run in runs:
            frame = run.frame
            if frame is not None and frame.has_early_answers and self._auditor.has_room:
                served = run.session.caches.version_of(frame.cascade)
                is_tried = served is not None and served is run.session.caches.candidate
                share = max(self._share, TRIED_SHARE) if is_tried else self._share
                if served is not None and self._random.random() < share:
                    audit = _make_audit(run, frame, served)
                    found += [] if audit is None else [audit]
        return found

    def note(self, runs: Iterable[CachedRun], kept: Iterable[Audit]) -> None:
        """Count the early answers of finished ``runs``, and queue the ``kept`` audits."""
        for run in runs:
            if run.frame is not None:
                _count(run, run.frame)
        for audit in kept:
            self._auditor.ask(audit.question, audit)

    def settle(self) -> None:
        """Apply the verdicts that have arrived."""
        while self.verdicts:
            audit, agrees = self.verdicts.popleft()
            if len(agrees) == len(audit.exits):
                _judge(audit, agrees)


def _count(run: CachedRun, frame: ExitingFrame) -> None:
    session, labels = run.session, run.labels
    early = _early(frame.answers)
    telemetry.count(metrics.CACHED_ROWS, labels, frame.rows)
    for answer in early:
        name = frame.exit_name(answer.exit_index)
        telemetry.count(metrics.EARLY_ANSWERS, (*labels, name), len(answer.rows))
    served = session.caches.note(frame)
    if served is None:
        return
    if frame.error is not None and not served.has_failed:
        served.has_failed = True
        LOGGER.warning(f"model '{labels[0]}': an exit evaluation failed: {frame.error!r:.200}")
    _count_changes(session, labels)
    for index in served.review():
        name = frame.exit_name(index)
        telemetry.count(metrics.SWITCHED_OFF_EXITS, (*labels, name, "cost"))
        LOGGER.warning(f"model '{labels[0]}': exit {name} is switched off: {served.costly[index]}")


def _judge(audit: Audit, verdicts: Sequence[bool]) -> None:
    cascade, model = audit.served.cascade, audit.labels[0]
    for index, agrees in zip(audit.exits, verdicts, strict=True):
        name = cascade.exits[index].name
        verdict = "agrees" if agrees else "differs"
        telemetry.count(metrics.AUDITED_ANSWERS, (*audit.labels, name, verdict))
        if audit.served.audit.note(index, audit.accuracy, agrees):
            telemetry.count(metrics.SWITCHED_OFF_EXITS, (*audit.labels, name, "promise"))
            LOGGER.warning(
                f"model '{model}': exit {name} is switched off, its live agreement "
                f"refutes the promise of {audit.accuracy:.1%}"
            )
            if audit.accuracy <= cascade.levels[0].accuracy:  # a stricter promise ends by itself
                audit.session.caches.refuted(audit.served)
    audit.session.caches.settle()
    _count_changes(audit.session, audit.labels)


def _count_changes(session: Session, labels: tuple[str, str]) -> None:
    """Count the cache versions promoted, rejected or taken back since the last call."""
    for change in session.caches.news:
        telemetry.count(metrics.CACHE_VERSIONS, (*labels, change.value))
    session.caches.news.clear()


def _early(answers: Sequence[Answer]) -> list[Answer]:
    return [answer for answer in answers if answer.exit_index is not None]


def _make_audit(run: CachedRun, frame: ExitingFrame, served: ServedCaches) -> Audit | None:
    """Return an audit of the rows answered early; None if numpy has no type for an input."""
    early = _early(frame.answers)
    rows = np.array([row for answer in early for row in answer.rows])
    inputs = run.copies(rows)
    if inputs is None:
        return None
    cascade = served.cascade
    parts = [(each.logits, *each.others) for each in early if each.logits is not None]
    answers = tuple(np.concatenate(each) for each in zip(*parts, strict=True))
    return Audit(
        run.session,
        served,
        run.labels,
        Question(run.session.path, cascade.model_digest, cascade.scores, inputs, answers),
        tuple(answer.exit_index or 0 for answer in early for _ in answer.rows),
        frame.accuracy,
    )
