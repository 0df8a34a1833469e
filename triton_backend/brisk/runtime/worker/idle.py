"""Moments in which work that nobody waits for disturbs no request."""

from __future__ import annotations

import time
from collections.abc import Callable

LONGEST_WAIT_S = 1.0
"""How long work waits for such a moment; then it is done beside requests."""

CALM_S = 0.05
"""Without a request for so long, none follows at once: more than a client takes between two."""

_LOOK_S = 0.002


class Quiet:
    """``attend`` is the worker's main thread's, all else any other thread's."""

    def __init__(
        self,
        clock_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.is_serving = False
        self._served_s = -CALM_S
        self._clock_s = clock_s
        self._sleep = sleep

    def expect(self) -> float:
        """A model has just been loaded, so a request is likely to come at once. How long what
        follows the load should wait for calm, a time of the clock.
        """
        self._served_s = self._clock_s()
        return self._served_s + LONGEST_WAIT_S

    def attend(self, is_serving: bool) -> None:
        """Called before and after each stretch of computing."""
        if self.is_serving and not is_serving:
            self._served_s = self._clock_s()
        self.is_serving = is_serving

    def await_gap(self, until_s: float) -> None:
        """Block until no request is computed, or until a time of the clock."""
        while self.is_serving and self._clock_s() < until_s:
            self._sleep(_LOOK_S)

    def pause(self, longest_s: float) -> None:
        """``await_gap`` for so long at most."""
        self.await_gap(self._clock_s() + longest_s)

    def await_calm(self, until_s: float) -> None:
        """Block until none has been for CALM_S, or until a time of the clock."""
        while self._is_lively() and self._clock_s() < until_s:
            self._sleep(CALM_S)  # seldom: each look takes the interpreter's lock from a request

    def _is_lively(self) -> bool:
        return self.is_serving or self._clock_s() - self._served_s < CALM_S
