"""Many requests of one model that wait: a worker answers them sooner than their stub.

Triton hands a stub's next request over when the last one is answered, so the stub computes one at
a time, on all processors. The worker computes as many at a time as there are processors
(``brisk.runtime.worker.side_by_side``). Of a network of 3 ms on two processors, 16 clients had 230
answers a second by the worker and 213 by the stub, but two clients 133 and 210. A stub sees how
many requests wait only by sending some on: those come at once that did wait.
"""

from __future__ import annotations

from collections.abc import Callable

AWAY_NS = 4_000_000_000
"""How long a crowd is left to the worker."""

HERE_NS = 200_000_000
"""How long it is then computed here before it is looked for again: stubs of other models may have
come that want the processors, which shows by runs here alone."""

FIRST_REST_NS, LONGEST_REST_NS = 1_000_000_000, 8_000_000_000
"""The time between two looks without a crowd: it doubles each time."""


class Crowd:
    """Finds out whether so many requests wait that the worker is to compute them.

    Only Triton's thread uses it.
    """

    def __init__(self, in_flight: Callable[[], int], threads: int) -> None:
        """``in_flight``: counts the requests that the worker has. ``threads``: those of a run."""
        self._in_flight = in_flight
        self._threads = threads
        self._is_away = False
        self._until_ns, self._rest_ns = 0, FIRST_REST_NS
        """The time of the next look, and the time from then to the one after."""
        self._sent = 0
        """The number of requests sent on to find out."""

    def sends_on(self, now_ns: int) -> bool:
        """Return whether to send a request on to the worker, because many wait or to find out."""
        if now_ns < self._until_ns:
            return self._is_away
        if self._is_away:
            self._is_away = False
            self._until_ns = now_ns + HERE_NS
            return False
        in_flight = self._in_flight()
        if in_flight > self._threads:
            self._is_away, self._sent = True, 0
            self._until_ns, self._rest_ns = now_ns + AWAY_NS, FIRST_REST_NS
            return True
        if self._sent and (not in_flight or self._sent > 2 * self._threads):
            self._sent = 0
            self._until_ns = now_ns + self._rest_ns
            self._rest_ns = min(2 * self._rest_ns, LONGEST_REST_NS)
            return False
        self._sent += 1
        return True
