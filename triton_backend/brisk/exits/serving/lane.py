"""The look-up lane: a thread of its own, so that a look-up never delays the base model."""

from __future__ import annotations

import contextlib
import queue
import threading
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from brisk.compiled.library import Library
from brisk.exits.compiled_lookup import Asked, CompiledLookUp, LookedUp, ReadyLookUp


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


@dataclass(slots=True, eq=False)
class Ticket:
    """A look-up under way, of ``hidden`` for the rows numbered ``rows``.

    ``may_stop``: nothing but this look-up decides about those rows, so that the model may stop in
    the middle of a run where it answers all of them. ``outcome`` is set once, as a whole: a reader
    sees None or all of it, without a lock. ``asked``: the same in a lane of machine code.
    """

    exit_index: int
    look_up: ReadyLookUp
    threshold: float
    hidden: torch.Tensor
    rows: tuple[int, ...]
    may_stop: bool = False
    outcome: Outcome | None = field(default=None)
    asked: Asked | None = None

    def poll(self) -> Outcome | None:
        """The outcome, once it is there."""
        if self.outcome is None and self.asked is not None and self.asked.entry.is_done:
            self.outcome = _outcome(
                self.asked.looked_up(len(self.rows)), self.asked.entry.threshold
            )
        return self.outcome

    @property
    def stops(self) -> bool:
        """Whether a run under ``watched`` may have ended early; ``poll`` has the outcome then."""
        return self.asked is not None and bool(self.asked.entry.stops)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Joined layers that this thread runs meanwhile end where the model need not go on."""
        if self.asked is None or not self.may_stop:
            yield
            return
        self.asked.library.watch(self.asked.address)
        try:
            yield
        finally:
            self.asked.library.watch(None)


def look_up(ask: ReadyLookUp, hidden: torch.Tensor, threshold: float) -> Outcome | None:
    """Perform a look-up in this thread; None: it answers no row, and all are near."""
    try:
        if isinstance(ask, CompiledLookUp):
            looked = ask.ask_here(hidden, threshold)
            return None if looked is None else _outcome(looked, threshold)
        return _outcome(ask(hidden), threshold)
    except Exception as error:  # noqa: BLE001  # a cache must never take its model down
        return Outcome((), None, (), error)


def _outcome(looked: LookedUp, threshold: float) -> Outcome:
    hits = tuple(place for place, score in enumerate(looked.scores) if score >= threshold)
    far = tuple(place for place, is_near in enumerate(looked.near) if not is_near)
    if not hits:
        return Outcome((), None, far)
    logits = looked.logits
    return Outcome(hits, logits if len(hits) == len(logits) else logits[list(hits)], far)


class LookUpLane:
    """Look-ups one at a time, in the order offered (GATI, eq. 9: never two at once).

    What machine code looks up has a thread that needs no interpreter; the rest is torch's, in a
    thread that begins with the first such look-up.
    """

    def __init__(self) -> None:
        self._compiled: _CompiledLane | None = None
        self._tickets: queue.SimpleQueue[Ticket | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def offer(self, ticket: Ticket) -> bool:
        """Take a look-up on, unless another one waits already: it would come too late."""
        by = ticket.look_up
        asked = None
        if isinstance(by, CompiledLookUp):
            asked = by.ask(ticket.hidden, ticket.threshold, may_stop=ticket.may_stop)
        if asked is not None and (lane := self._lane_of(asked.library)).address is not None:
            ticket.asked = asked
            return lane.offer(asked)
        if not self._tickets.empty():
            return False
        if self._thread is None:
            self._thread = self._start()
        self._tickets.put(ticket)
        return True

    def close(self) -> None:
        """End the threads when they have done what they have taken on."""
        if self._compiled is not None:
            self._compiled.close()
        if self._thread is not None:
            self._tickets.put(None)
            self._thread.join()

    def _lane_of(self, library: Library) -> _CompiledLane:
        if self._compiled is None:
            self._compiled = _CompiledLane(library)
        return self._compiled

    def _start(self) -> threading.Thread:
        threads, ready = torch.get_num_threads(), threading.Event()
        thread = threading.Thread(
            target=_run, args=(self._tickets, ready), name="brisk-lookup", daemon=True
        )
        thread.start()
        ready.wait()
        # The thread's own number also became the default of threads that start later.
        torch.set_num_threads(threads)
        return thread


class _CompiledLane:
    """``address``: None where the machine gave no thread."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self.address: int | None = library.new_lane()
        self._kept: deque[Asked] = deque(maxlen=2)
        """What the lane may still read: one look-up is made while another one waits."""
        self.close = weakref.finalize(self, library.delete_lane, self.address)

    def offer(self, asked: Asked) -> bool:
        if not self._library.offer(self.address, asked.address):
            return False
        self._kept.append(asked)
        return True


def _run(tickets: queue.SimpleQueue[Ticket | None], ready: threading.Event) -> None:
    torch.set_num_threads(1)
    ready.set()
    while (ticket := tickets.get()) is not None:
        found = look_up(ticket.look_up, ticket.hidden, ticket.threshold)
        ticket.outcome = found or Outcome((), None)
