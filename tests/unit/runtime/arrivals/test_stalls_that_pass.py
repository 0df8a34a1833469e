"""A fetch that stalls and goes on at any moment: who waits for its bytes is told, or goes on."""

from __future__ import annotations

import pytest

from brisk.errors import UnavailableError
from brisk.runtime.arrivals.arrival import ModelArrival


class NothingHere:
    def is_here(self, spans: object) -> bool:
        return False


class Passing(ModelArrival):
    """An arrival whose bytes come again right after somebody has seen that it is stalled."""

    def __init__(self) -> None:
        self.copy = NothingHere()
        self._spans = [()]
        self._is_closed = lambda: False
        self.problems = [UnavailableError("nothing has arrived")]

    @property
    def problem(self) -> UnavailableError | None:
        return self.problems.pop() if self.problems else None


def test_a_stall_that_passes_while_it_is_looked_at_is_told_once() -> None:
    """A segment that fails by any other error fails for every later request, too."""
    with pytest.raises(UnavailableError, match="nothing has arrived"):
        Passing().wait_for(0)


def test_who_is_told_of_a_stall_leaves_nothing_behind_in_it() -> None:
    arrival = Passing()
    (told,) = arrival.problems
    with pytest.raises(UnavailableError, match="nothing has arrived"):
        arrival.wait_for(0)
    assert told.__traceback__ is None
