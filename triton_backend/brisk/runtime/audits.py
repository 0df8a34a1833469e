"""Early answers run through the whole model when the worker has nothing else to do.

Used by the worker's main thread. An audit goes on layer by layer, and waits at a boundary for as
long as any request is there: it is less urgent than everything.
"""

from __future__ import annotations

import dataclasses
import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from brisk import telemetry
from brisk.errors import BriskError
from brisk.execution import Frame, LoadedProgram
from brisk.exits.serving import Answer
from brisk.runtime.batch import RequestJob, Run
from brisk.runtime.early_exits import ServedCaches, tell
from brisk.runtime.saying import say
from brisk.runtime.session import Session
from brisk.scheduling.job import JobClass
from brisk.solutions.base import Value
from brisk.telemetry import metrics

AUDITED_SHARE = 0.05
"""Of runs; an audit is of the rows that one run answered early."""

MOST_WAITING = 8
"""Audits that wait; while so many do, nothing more is sampled."""

LONGEST_WAIT_NS = 1_000_000_000
"""After which an audit's layers are run between two runs: a busy worker is audited, too."""


@dataclass(frozen=True, slots=True, eq=False)
class _Audit:
    """``classes`` int64 [rows]: what was answered to ``inputs``, by the exits ``exits``."""

    session: Session
    served: ServedCaches
    labels: tuple[str, str]
    inputs: dict[str, Value]
    classes: torch.Tensor
    exits: tuple[int, ...]
    since_ns: int


class Audits:
    """Samples, keeps and performs audits."""

    def __init__(
        self,
        clock_ns: Callable[[], int],
        share: float = AUDITED_SHARE,
        seed: int | None = None,
    ) -> None:
        self._clock_ns = clock_ns
        self._share = share
        self._random = random.Random(seed)
        self._waiting: deque[_Audit] = deque()
        self._frame: Frame | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def sample(self, run: Run) -> None:
        """A run has begun: perhaps copy its inputs, which are the frontend's and go with it."""
        if (
            run.early is not None
            and len(self._waiting) < MOST_WAITING
            and self._random.random() < self._share
        ):
            run.audited_inputs = {
                name: value.clone() if isinstance(value, torch.Tensor) else value
                for name, value in run.inputs.items()
            }

    def note(self, run: Run) -> None:
        """A run is finished: count what was answered early, and keep it if it was sampled."""
        frame, session = run.early, run.session
        if frame is None or not isinstance(session, Session):
            return
        model = run.jobs[0].payload.binding.model
        labels = (model.name, str(model.version))
        early = [answer for answer in frame.answers if answer.exit_index is not None]
        telemetry.count(metrics.CACHED_ROWS, labels, sum(run.rows))
        for answer in early:
            name = frame.exit_name(answer.exit_index)
            telemetry.count(metrics.EARLY_ANSWERS, (*labels, name), len(answer.rows))
        served = session.caches.note(frame.cascade, sum(run.rows), early)
        if served is not None and frame.error is not None and not served.tally.has_failed:
            served.tally.has_failed = True
            tell(f"model '{model.name}': a look-up of its caches failed: {frame.error!r:.200}")
        inputs = run.audited_inputs
        if served is not None and early and inputs is not None:
            now_ns = self._clock_ns()
            self._waiting.append(_make_audit(session, served, labels, inputs, early, now_ns))

    def may_go_on(self, following: RequestJob | None) -> bool:
        """Whether a layer may run before ``following``, the next request, if there is one.

        Nothing runs now. An audit that has waited for long may, but not before a real-time one.
        """
        if following is None or not self._waiting:
            return bool(self._waiting)
        waited_ns = self._clock_ns() - self._waiting[0].since_ns
        return following.job_class is not JobClass.REALTIME and waited_ns > LONGEST_WAIT_NS

    def advance(self) -> None:
        """Run one layer of the first audit; its verdicts come with the class scores.

        Layers are not joined, so that the scores are there even where they are no output.
        """
        audit = self._waiting[0]
        is_over = audit.session.starting.table.is_closed
        try:
            if not is_over:
                is_over = self._step(audit)
        except BriskError as error:
            say(f"an audit of model '{audit.labels[0]}' failed: {error}")
            is_over = True
        if is_over:
            self._frame = None
            self._waiting.popleft()

    def _step(self, audit: _Audit) -> bool:
        """True where the audit is over."""
        if self._frame is None:
            self._frame = Frame(_unjoined(audit.session), audit.inputs)
        finished = self._frame.step()
        if self._frame.layers_done > audit.served.cascade.scores.layer:
            self._judge(audit, self._frame.value_at(audit.served.places.scores_slot))
            return True
        return finished

    def _judge(self, audit: _Audit, whole: Value) -> None:
        if not isinstance(whole, torch.Tensor):
            return
        cascade = audit.served.cascade
        agree = (whole.argmax(1) == audit.classes).tolist()
        for exit_index, agrees in zip(audit.exits, agree, strict=True):
            name = cascade.exits[exit_index].name
            verdict = "agrees" if agrees else "differs"
            telemetry.count(metrics.AUDITED_ANSWERS, (*audit.labels, name, verdict))
            if audit.served.audit.note(exit_index, agrees):
                telemetry.count(metrics.SWITCHED_OFF_EXITS, (*audit.labels, name))
                tell(
                    f"model '{audit.labels[0]}': exit {name} is switched off, its live agreement "
                    f"refutes the promise of {cascade.levels[0].accuracy:.1%}"
                )
                audit.session.caches.refuted(audit.served)


def _make_audit(
    session: Session,
    served: ServedCaches,
    labels: tuple[str, str],
    inputs: Mapping[str, Value],
    early: Sequence[Answer],
    now_ns: int,
) -> _Audit:
    """Of the rows of ``inputs`` that ``early`` answered."""
    rows = torch.tensor([row for answer in early for row in answer.rows])
    return _Audit(
        session,
        served,
        labels,
        {
            name: value[rows] if isinstance(value, torch.Tensor) else value
            for name, value in inputs.items()
        },
        torch.cat([answer.classes for answer in early]),
        tuple(answer.exit_index or 0 for answer in early for _ in answer.rows),
        now_ns,
    )


def _unjoined(session: Session) -> LoadedProgram:
    loaded = session.loaded
    return dataclasses.replace(loaded, layers=session.starting.table.current(), joined=None)
