"""A stub finds out whether many requests of its model wait, and leaves these to the worker."""

from __future__ import annotations

from itertools import pairwise

import pytest

from brisk.stub.local.crowd import AWAY_NS, FIRST_REST_NS, HERE_NS, LONGEST_REST_NS, Crowd

RUN_NS = 5_000_000


class Clients:
    """Some clients with one request each in flight, whose stub asks what to do with each."""

    def __init__(self, count: int, threads: int = 2) -> None:
        self.count = count
        self.in_flight = 0
        self.now_ns = 1_000_000_000
        self._crowd = Crowd(lambda: self.in_flight, threads)

    def ask(self) -> bool:
        """The next request that Triton hands over: whether it is sent on."""
        if self.in_flight == self.count:  # none is left to come before one is answered
            self.in_flight -= 1
            self.now_ns += RUN_NS
        sent = self._crowd.sends_on(self.now_ns)
        if sent:
            self.in_flight += 1
        else:
            self.now_ns += RUN_NS
        self.in_flight = max(0, self.in_flight - (not sent))
        return sent

    def ask_for(self, time_ns: int) -> tuple[int, int]:
        """The numbers of requests that are computed here and sent on in a time."""
        until_ns, answers = self.now_ns + time_ns, []
        while self.now_ns < until_ns:
            answers.append(self.ask())
        return answers.count(False), answers.count(True)


@pytest.mark.parametrize("count", [1, 2])
def test_requests_of_few_clients_are_computed_here(count: int) -> None:
    clients = Clients(count)
    here, sent = clients.ask_for(60_000_000_000)
    assert 0 < sent < 0.01 * here


def test_looks_without_a_crowd_become_rare() -> None:
    clients = Clients(1)
    clients.ask_for(60_000_000_000)
    looks = [clients.now_ns for _ in range(10_000) if clients.ask()]
    pauses = [late - early for early, late in pairwise(looks)]
    assert FIRST_REST_NS < LONGEST_REST_NS <= min(pauses)


@pytest.mark.parametrize("count", [4, 16])
def test_requests_of_many_clients_are_sent_on(count: int) -> None:
    clients = Clients(count)
    here, sent = clients.ask_for(60_000_000_000)
    assert 0.85 * AWAY_NS / (AWAY_NS + HERE_NS) < sent / (here + sent) < 1


def test_a_crowd_that_has_gone_is_computed_here_again() -> None:
    clients = Clients(16)
    clients.ask_for(10_000_000_000)
    clients.count, clients.in_flight = 1, 0
    clients.ask_for(AWAY_NS + HERE_NS)
    here, sent = clients.ask_for(10_000_000_000)
    assert sent < 0.01 * here
