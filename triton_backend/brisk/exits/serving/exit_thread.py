"""The exit thread: it evaluates exits, so that an evaluation never delays the base model."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field

import numpy as np

from brisk.exits.heads.exit_model import ExitEvaluator, Given


@dataclass(frozen=True, slots=True, eq=False)
class ExitOutcome:
    """The decision of an evaluation about the rows of its ticket."""

    hits: tuple[int, ...]
    """The places of the answered rows among the ticket's rows."""
    logits: np.ndarray | None
    """The logits of the answered rows, float32 [hits, classes]; None without hits."""
    rejected: tuple[int, ...] = ()
    """The places of out-of-distribution rows, which no later exit may answer."""
    error: Exception | None = None
    """The error that the evaluation raised; no row is answered then."""
    others: tuple[np.ndarray, ...] = ()
    """A whole model's other outputs, [hits, ...] each."""


@dataclass(slots=True, eq=False)
class Ticket:
    """An evaluation under way, of ``hidden`` for the rows numbered ``rows``.

    ``outcome`` is set once, as a whole: a reader sees None or all of it, without a lock.
    """

    exit_index: int
    evaluate: ExitEvaluator
    threshold: float
    hidden: Given
    rows: tuple[int, ...]
    outcome: ExitOutcome | None = field(default=None)


def evaluate_exit(evaluate: ExitEvaluator, hidden: Given, threshold: float) -> ExitOutcome | None:
    """Evaluate an exit in this thread; return None if it answers no row and rejects none."""
    try:
        found = evaluate(hidden)
    except Exception as error:  # noqa: BLE001  # a cache must never take its model down
        return ExitOutcome((), None, (), error)
    if len(found.scores) == 1:  # numpy would take 4 to 6 µs for what takes Python 1
        is_hit, is_near = found.scores.item() >= threshold, found.near.item()
        if is_near and not is_hit:
            return None
        logits = found.logits if is_hit else None
        return ExitOutcome((0,) * is_hit, logits, () if is_near else (0,), others=found.others)
    hits, rejected = found.scores >= threshold, ~found.near
    if not hits.any() and not rejected.any():
        return None
    answered, refused = np.flatnonzero(hits), np.flatnonzero(rejected)
    logits, others = None, found.others
    if len(answered) == len(hits):
        logits = found.logits
    elif len(answered):
        logits, others = found.logits[answered], tuple(each[answered] for each in others)
    return ExitOutcome(tuple(answered.tolist()), logits, tuple(refused.tolist()), others=others)


class ExitThread:
    """Evaluates exits one at a time, in the order offered (GATI, eq. 9: never two at once).

    Sessions release the interpreter's lock, so evaluations are concurrent with the model. The
    thread begins with the first one. One thread offers.
    """

    def __init__(self) -> None:
        self._tickets: queue.SimpleQueue[Ticket | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def offer(self, ticket: Ticket) -> bool:
        """Accept an evaluation; return False if another one waits: it would come too late."""
        if not self._tickets.empty():
            return False
        if self._thread is None:
            self._thread = threading.Thread(
                target=_run, args=(self._tickets,), name="brisk-exits", daemon=True
            )
            self._thread.start()
        self._tickets.put(ticket)
        return True

    def close(self) -> None:
        """End the thread after the evaluations that it has accepted."""
        if self._thread is not None:
            self._tickets.put(None)
            self._thread.join()


def _run(tickets: queue.SimpleQueue[Ticket | None]) -> None:
    while (ticket := tickets.get()) is not None:
        found = evaluate_exit(ticket.evaluate, ticket.hidden, ticket.threshold)
        ticket.outcome = found or ExitOutcome((), None)
        del ticket  # its hidden output is not kept until the next one comes
