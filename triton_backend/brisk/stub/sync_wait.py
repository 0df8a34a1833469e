"""Whether ``execute`` waits for an answer that is about to come.

An answer through a response sender costs a round trip to the server's process, 180 microseconds
in which the receiver's thread waits; one that ``execute`` returns costs nothing more. While
``execute`` waits, though, Triton gives the instance no other request, so it does for quick answers
to requests that come one by one only.
"""

from __future__ import annotations

QUICK_NS = 2_000_000
"""Answers are awaited where the last ones took less, from arrival to answer.

A small network's take half of it on a busy machine, 0.4 to 0.9 ms where Triton, its client and the
worker have two processors between them.
"""

EYES_OPEN_NS = 1_000_000
"""Answers that took less than this are awaited without sleeping, for so long at most."""

WAIT_NS = 4_000_000
"""How long others are awaited asleep; an answer that takes longer goes through a sender."""

CROWDED_NS = 150_000
"""A request that comes sooner after the last return had been waiting in Triton's queue."""

CROWDED_REQUESTS = 32
"""How many requests are not awaited after such a one."""


class Promptness:
    """``wants`` and ``returns`` are for Triton's thread, ``learn`` for the receiver's."""

    def __init__(self) -> None:
        self._took_ns = 2 * QUICK_NS
        self._returned_ns: int | None = None
        self._crowd = 0

    def wants(self, requests: int, pending: int, now_ns: int) -> bool:
        """Whether to wait for the answer of what came now: ``requests`` at once, while
        ``pending`` others are in flight.
        """
        is_crowd = requests > 1 or pending > 0
        if self._returned_ns is not None and now_ns - self._returned_ns < CROWDED_NS:
            is_crowd = True
        if is_crowd:
            self._crowd = CROWDED_REQUESTS
        elif self._crowd:
            self._crowd -= 1
        return not self._crowd and self._took_ns < QUICK_NS

    @property
    def is_imminent(self) -> bool:
        """Whether the answer to what was just sent is a matter of microseconds."""
        return self._took_ns < EYES_OPEN_NS

    def returns(self, now_ns: int) -> None:
        """``execute`` ends."""
        self._returned_ns = now_ns

    def learn(self, took_ns: int) -> None:
        """A request has been answered so long after it came."""
        self._took_ns = (3 * self._took_ns + min(took_ns, 4 * QUICK_NS)) // 4
