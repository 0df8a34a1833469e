"""The ready queue, in virtual time: order, bounds, time-outs and withdrawal."""

from __future__ import annotations

import gc
import itertools
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from brisk.errors import UnavailableError
from brisk.scheduling.job import Job, JobState, in_turn, more_urgent, most_urgent_first
from brisk.scheduling.job_class import JobClass
from brisk.scheduling.queue import ReadyQueue
from support.runtime.waiting_jobs import drained, job, queue_of


def test_a_full_model_sheds_its_least_urgent_request_for_a_more_urgent_one() -> None:
    queue: ReadyQueue[Job] = ReadyQueue()
    waiting = [
        job(1, "a", job_class=JobClass.NORMAL),
        job(2, "a", job_class=JobClass.BESTEFFORT),
        job(3, "a", job_class=JobClass.BESTEFFORT),
        job(4, "b", job_class=JobClass.BESTEFFORT),
    ]
    for one in waiting:
        assert queue.add(one, 3, "a") is None
    assert queue.add(job(5, "a", job_class=JobClass.REALTIME), 3, "a") is waiting[2]
    assert waiting[2].state is JobState.ENDED
    with pytest.raises(UnavailableError, match="3 requests of model 'a' wait already"):
        queue.add(job(6, "a", job_class=JobClass.BESTEFFORT), 3, "a")
    queue.check_integrity()
    assert drained(queue) == [5, 1, 2, 4]


def test_a_full_queue_sheds_the_least_urgent_request_of_any_model() -> None:
    queue: ReadyQueue[Job] = ReadyQueue(bound=2)
    lazy = job(1, "a", job_class=JobClass.BESTEFFORT)
    queue.add(lazy, 9, "a")
    queue.add(job(2, "b"), 9, "b")
    assert queue.add(job(3, "c"), 9, "c") is lazy
    with pytest.raises(UnavailableError, match="2 requests wait already, which is BRISK_MAX_WAIT"):
        queue.add(job(4, "c"), 9, "c")
    assert queue.add(job(5, "c"), None, "c") is None, "a replayed request has room"
    assert drained(queue) == [2, 3, 5]


@pytest.mark.parametrize("limit", [3, 9], ids=["the model", "the queue"])
def test_who_waits_is_not_looked_at_for_each_that_is_refused_in_a_flood(
    monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """Where thousands wait, that would take longer than all else that is done to refuse one."""
    queue: ReadyQueue[Job] = ReadyQueue(bound=3)
    for number in range(3):
        queue.add(job(number, "a"), limit, "a")
    for turns in queue._in_order:
        monkeypatch.setattr(type(turns), "last", lambda *_: pytest.fail("who waits is looked at"))
    with pytest.raises(UnavailableError, match="3 requests"):
        queue.add(job(4, "a"), limit, "a")


def test_the_class_decides_then_the_deadline_then_the_arrival() -> None:
    queue = queue_of(
        job(1, "a", 1, JobClass.BESTEFFORT),
        job(7, "b", 100),
        job(6, "c", None),
        job(3, "b", 900),
        job(4, "a", 100),
        job(5, "a", None, JobClass.REALTIME),
        job(2, "b", None),
    )
    assert drained(queue) == [5, 4, 7, 3, 2, 6, 1]


def test_the_bound_counts_a_model_s_own_waiting_jobs() -> None:
    queue = queue_of(job(1, "a"), job(2, "a"), job(3, "b"))
    with pytest.raises(UnavailableError, match="2 requests of model 'resnet' wait already"):
        queue.add(job(4, "a"), 2, "resnet")
    queue.add(job(5, "b"), 2, "b")
    assert (queue.waiting("a"), queue.waiting("b"), queue.waiting("c")) == (2, 2, 0)
    queue.check_integrity()
    assert drained(queue) == [1, 2, 3, 5]


def test_jobs_expire_at_their_deadline_not_before() -> None:
    queue = queue_of(job(1, deadline_ns=100), job(2), job(3, deadline_ns=50))
    assert queue.expire(49) == []
    assert [one.number for one in queue.expire(50)] == [3]
    assert [one.number for one in queue.expire(1000)] == [1]
    assert drained(queue) == [2]


def test_of_equal_deadlines_the_first_comes_first() -> None:
    queue = queue_of(*[job(sequence, deadline_ns=7) for sequence in (3, 1, 2)])
    assert [one.number for one in queue.expire(7)] == [1, 2, 3]


def test_only_a_waiting_job_can_be_withdrawn_and_only_once() -> None:
    first, second = job(1), job(2)
    queue = queue_of(first, second)
    assert queue.withdraw(second)
    assert second.state is JobState.ENDED
    assert not queue.withdraw(second)
    assert queue.pop() is first
    assert not queue.withdraw(first)
    assert first.state is JobState.RUNNING
    queue.check_integrity()


def test_companions_are_of_one_model_and_in_order() -> None:
    first = job(1, "a")
    queue = queue_of(first, job(4, "a"), job(2, "b"), job(3, "a"))
    assert queue.pop() is first
    assert [one.number for one in queue.pop_companions(first, lambda _: True)] == [3, 4]
    queue.check_integrity()
    assert drained(queue) == [2]


def test_companions_end_at_the_first_one_refused() -> None:
    first = job(1)
    queue = queue_of(first, job(2), job(3), job(4))
    queue.pop()
    numbers = []

    def accept(other: Job) -> bool:
        numbers.append(other.number)
        return other.number != 3

    companions = queue.pop_companions(first, accept)
    assert [one.number for one in companions] == [2]
    assert numbers == [2, 3]
    assert [one.state for one in companions] == [JobState.RUNNING]
    assert drained(queue) == [3, 4]


def test_jobs_that_have_left_do_not_pile_up() -> None:
    """A client that sends and cancels without end must not cost memory."""
    queue = queue_of(job(0))
    for sequence in range(1, 5000):
        one = job(sequence, deadline_ns=10**9 + sequence)
        queue.add(one, None, "m")
        assert queue.withdraw(one)
    assert queue.entries < 400
    queue.check_integrity()
    assert drained(queue) == [0]


def test_deadlines_of_answered_jobs_do_not_pile_up_beside_one_that_waits() -> None:
    waiting = job(0, model="other")
    queue = queue_of(waiting)
    for sequence in range(1, 5000):
        queue.add(job(sequence, deadline_ns=10**12 + sequence), None, "m")
        assert queue.pop() is not waiting
    assert queue.entries < 200
    queue.check_integrity()
    assert drained(queue) == [0]


def test_nothing_that_has_left_is_kept_while_nothing_waits() -> None:
    """A job holds its request, and that its stub's memory."""
    queue = queue_of()
    for sequence in range(20):
        deadline_ns = 10**12 + sequence if sequence % 2 else None
        queue.add(job(sequence, "left", deadline_ns=deadline_ns), None, "m")
    while queue.pop() is not None:
        pass
    gc.collect()
    jobs = [each for each in gc.get_objects() if issubclass(type(each), Job)]
    assert not any(each.model == "left" for each in jobs)
    assert queue.entries == 0


def test_jobs_that_ran_together_can_wait_again() -> None:
    jobs = [job(number) for number in range(20)]
    queue = queue_of(*jobs)
    first = queue.pop()
    assert first is jobs[0]
    companions = queue.pop_companions(first, lambda other: other.number < 15)
    for one in (first, *companions):
        queue.put_back(one)
    queue.check_integrity()
    assert drained(queue) == list(range(20))


def test_a_wrong_count_is_noticed() -> None:
    one = job(1)
    queue = queue_of(one)
    one.state = JobState.ENDED
    with pytest.raises(AssertionError, match="1} counted"):
        queue.check_integrity()


class QueueBesideItsModel(RuleBasedStateMachine):
    """Any order of events against a list that is searched from the front."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: ReadyQueue[Job] = ReadyQueue()
        self.waiting: list[Job] = []
        self.numbers = itertools.count()
        self.now_ns = 0
        self.served_ns: Counter[tuple[JobClass, str]] = Counter()
        self.begun_ns: Counter[JobClass] = Counter()

    @rule(
        model=st.sampled_from("abc"),
        after_ns=st.none() | st.integers(0, 20),
        job_class=st.sampled_from(JobClass),
    )
    def add(self, model: str, after_ns: int | None, job_class: JobClass) -> None:
        deadline_ns = None if after_ns is None else self.now_ns + after_ns
        one = job(next(self.numbers), model, deadline_ns, job_class)
        same = [other for other in self.waiting if other.model == model]
        if len(same) < 4:
            assert self.queue.add(one, 4, model) is None
        elif more_urgent(one, last := max(same, key=most_urgent_first)):
            assert self.queue.add(one, 4, model) is last
            self.waiting.remove(last)
            same.remove(last)
        else:
            with pytest.raises(UnavailableError):
                self.queue.add(one, 4, model)
            return
        if not any(other.job_class is job_class for other in same):
            own = (job_class, model)
            self.served_ns[own] = max(self.served_ns[own], self.begun_ns[job_class])
        self.waiting.append(one)
        self.sort()

    def sort(self) -> None:
        self.waiting.sort(key=lambda one: in_turn(one, self.served_ns[one.job_class, one.model]))

    def begin(self, one: Job) -> None:
        self.waiting.remove(one)
        if one.deadline_ns is None:
            begun_ns = self.served_ns[one.job_class, one.model]
            self.begun_ns[one.job_class] = max(self.begun_ns[one.job_class], begun_ns)

    @rule(job_class=st.sampled_from(JobClass), model=st.sampled_from("abc"), ns=st.integers(0, 9))
    def charge(self, job_class: JobClass, model: str, ns: int) -> None:
        self.queue.charge(job_class, model, ns)
        self.served_ns[job_class, model] += ns
        self.sort()

    @rule()
    def pop(self) -> None:
        first = self.waiting[0] if self.waiting else None
        assert self.queue.pop() is first
        if first is not None:
            self.begin(first)

    @rule(only=st.sampled_from(JobClass))
    def pop_of_a_class(self, only: JobClass) -> None:
        first = next((one for one in self.waiting if one.job_class is only), None)
        assert self.queue.peek(only) is first
        assert self.queue.pop(only) is first
        if first is not None:
            self.begin(first)

    @rule(most=st.integers(0, 3))
    def pop_with_companions(self, most: int) -> None:
        first = self.queue.pop()
        if first is None:
            return
        self.begin(first)
        places = itertools.count()
        companions = self.queue.pop_companions(first, lambda _: next(places) < most)
        own = [
            one
            for one in self.waiting
            if one.model == first.model and one.job_class is first.job_class
        ]
        own.sort(key=most_urgent_first)
        expected = own[:most]
        assert companions == expected
        self.waiting = [one for one in self.waiting if one not in expected]

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.waiting))
        assert self.queue.withdraw(one)
        self.waiting.remove(one)

    @rule(passed_ns=st.integers(0, 15))
    def time_passes(self, passed_ns: int) -> None:
        self.now_ns += passed_ns
        late = [
            one
            for one in self.waiting
            if one.deadline_ns is not None and one.deadline_ns <= self.now_ns
        ]
        expired = self.queue.expire(self.now_ns)
        assert sorted(expired, key=most_urgent_first) == late
        self.waiting = [one for one in self.waiting if one not in late]

    @invariant()
    def the_queue_agrees(self) -> None:
        self.queue.check_integrity()
        assert len(self.queue) == len(self.waiting)
        assert self.queue.peek() is (self.waiting[0] if self.waiting else None)


QueueBesideItsModel.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None
)
test_the_queue_agrees_with_its_model = QueueBesideItsModel.TestCase
