"""When ``execute`` waits for an answer."""

from __future__ import annotations

from brisk.stub.runtime_client.client import CROWDED_NS, CROWDED_REQUESTS, QUICK_NS, Promptness

PAUSE_NS = 10 * CROWDED_NS


class Instance:
    """Requests at given pauses, each answered and returned at once."""

    def __init__(self, took_ns: int) -> None:
        self.promptness = Promptness()
        self.took_ns = took_ns
        self.now_ns = 0

    def ask(self, pause_ns: int = PAUSE_NS, requests: int = 1, pending: int = 0) -> bool:
        self.now_ns += pause_ns
        waited = self.promptness.wants(requests, pending, self.now_ns)
        self.promptness.learn(self.took_ns)
        self.promptness.returns(self.now_ns)
        return waited


def test_the_first_request_is_not_awaited_and_quick_ones_are_soon() -> None:
    instance = Instance(QUICK_NS // 3)
    waited = [instance.ask() for _ in range(10)]
    assert not waited[0]
    assert waited[-1]


def test_slow_answers_are_never_awaited() -> None:
    instance = Instance(QUICK_NS * 2)
    assert not any(instance.ask() for _ in range(50))


def test_an_answer_that_becomes_slow_is_not_awaited_any_more() -> None:
    instance = Instance(QUICK_NS // 3)
    for _ in range(10):
        instance.ask()
    instance.took_ns = QUICK_NS * 10
    assert [instance.ask() for _ in range(4)][-1] is False


def test_requests_that_stood_in_a_queue_are_not_awaited_for_a_while() -> None:
    instance = Instance(QUICK_NS // 3)
    for _ in range(10):
        instance.ask()
    for crowd in ({"pause_ns": CROWDED_NS // 2}, {"requests": 2}, {"pending": 1}):
        assert not instance.ask(**crowd)
        waited = [instance.ask() for _ in range(CROWDED_REQUESTS)]
        assert waited == [False] * (CROWDED_REQUESTS - 1) + [True]
