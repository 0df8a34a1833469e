"""The look-up exit_thread: a thread of its own, so that a look-up never delays the base model."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field

import numpy as np

from brisk.exits.heads.exit_model import ExitEvaluator, Given


@dataclass(frozen=True, slots=True, eq=False)
class ExitOutcome:
    """``hits``: places among the ticket's rows that are answered; ``logits`` [hits, classes], and
    ``others``, [hits, ...] each.

    ``far``: places that lie far from all training data, which no later exit may answer.
    ``error``: what the look-up raised; nothing is answered then.
    """

    hits: tuple[int, ...]
    logits: np.ndarray | None
    far: tuple[int, ...] = ()
    error: Exception | None = None
    others: tuple[np.ndarray, ...] = ()


@dataclass(slots=True, eq=False)
class Ticket:
    """A look-up under way, of ``hidden`` for the rows numbered ``rows``.

    ``outcome`` is set once, as a whole: a reader sees None or all of it, without a lock.
    """

    exit_index: int
    evaluate: ExitEvaluator
    threshold: float
    hidden: Given
    rows: tuple[int, ...]
    outcome: ExitOutcome | None = field(default=None)


def evaluate_exit(ask: ExitEvaluator, hidden: Given, threshold: float) -> ExitOutcome | None:
    """Perform a look-up in this thread; None: it answers no row, and all are near."""
    try:
        looked = ask(hidden)
    except Exception as error:  # noqa: BLE001  # a cache must never take its model down
        return ExitOutcome((), None, (), error)
    hits, far = looked.scores >= threshold, ~looked.near
    if not hits.any() and not far.any():
        return None
    answered, strange = np.flatnonzero(hits), np.flatnonzero(far)
    logits, others = None, looked.others
    if len(answered) == len(hits):
        logits = looked.logits
    elif len(answered):
        logits, others = looked.logits[answered], tuple(each[answered] for each in others)
    return ExitOutcome(tuple(answered.tolist()), logits, tuple(strange.tolist()), others=others)


class ExitThread:
    """Look-ups one at a time, in the order offered (GATI, eq. 9: never two at once).

    Sessions release the interpreter's lock, so they run beside the model. The thread begins with
    the first look-up.
    """

    def __init__(self) -> None:
        self._tickets: queue.SimpleQueue[Ticket | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def offer(self, ticket: Ticket) -> bool:
        """Take a look-up on, unless another one waits already: it would come too late."""
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
        """End the thread when it has done what it has taken on."""
        if self._thread is not None:
            self._tickets.put(None)
            self._thread.join()


def _run(tickets: queue.SimpleQueue[Ticket | None]) -> None:
    while (ticket := tickets.get()) is not None:
        found = evaluate_exit(ticket.evaluate, ticket.hidden, ticket.threshold)
        ticket.outcome = found or ExitOutcome((), None)
        del ticket  # its hidden output is not kept until the next one comes
