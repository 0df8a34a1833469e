"""The look-up lane: a thread of its own, so that a look-up never delays the base model."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field

import torch

from brisk.exits.compiled_lookup import ReadyLookUp


@dataclass(slots=True, eq=False)
class Ticket:
    """A look-up under way, of ``hidden`` for the rows numbered ``rows``.

    The lane sets ``outcome`` once, as a whole: a reader sees None or all of it, without a lock.
    """

    exit_index: int
    look_up: ReadyLookUp
    threshold: float
    hidden: torch.Tensor
    rows: tuple[int, ...]
    outcome: Outcome | None = field(default=None)


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """``hits``: places among the ticket's rows that are answered; ``logits`` [hits, classes].

    ``far``: places that lie far from all training data, which no later exit may answer.
    ``error``: what the look-up raised; nothing is answered then.
    """

    hits: tuple[int, ...]
    logits: torch.Tensor | None
    far: tuple[int, ...] = ()
    error: Exception | None = None


def look_up(ticket: Ticket) -> Outcome:
    """Perform a look-up in this thread."""
    try:
        looked = ticket.look_up(ticket.hidden)
        hits = tuple(
            place for place, score in enumerate(looked.scores) if score >= ticket.threshold
        )
        far = tuple(place for place, is_near in enumerate(looked.near) if not is_near)
        if not hits:
            return Outcome((), None, far)
        logits = looked.logits
        return Outcome(hits, logits if len(hits) == len(logits) else logits[list(hits)], far)
    except Exception as error:  # noqa: BLE001  # a cache must never take its model down
        return Outcome((), None, (), error)


class LookUpLane:
    """Look-ups one at a time, in the order offered (GATI, eq. 9: never two at once)."""

    def __init__(self) -> None:
        self._tickets: queue.SimpleQueue[Ticket | None] = queue.SimpleQueue()
        self._ready = threading.Event()
        threads = torch.get_num_threads()
        self._thread = threading.Thread(target=self._run, name="brisk-lookup", daemon=True)
        self._thread.start()
        self._ready.wait()
        # The lane's own number also became the default of threads that start later.
        torch.set_num_threads(threads)

    def offer(self, ticket: Ticket) -> bool:
        """Take a look-up on, unless another one waits already: it would come too late."""
        if not self._tickets.empty():
            return False
        self._tickets.put(ticket)
        return True

    def close(self) -> None:
        """End the thread when it has done what it has taken on."""
        self._tickets.put(None)
        self._thread.join()

    def _run(self) -> None:
        torch.set_num_threads(1)
        self._ready.set()
        while (ticket := self._tickets.get()) is not None:
            ticket.outcome = look_up(ticket)
