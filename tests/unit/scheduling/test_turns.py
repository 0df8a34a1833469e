"""Turns of models within a class, and who is refused where the queue is full."""

from __future__ import annotations

import itertools

import pytest

from brisk.errors import UnavailableError
from brisk.scheduling.job import Job
from brisk.scheduling.job_class import JobClass
from brisk.scheduling.queue import ALIKE, MOST_SERVED, ReadyQueue
from support.runtime.waiting_jobs import drained, job, queue_of


def test_models_take_turns_by_the_time_that_was_computed_for_them() -> None:
    """64 requests of one model wait; one of another comes again as soon as it is answered."""
    queue = queue_of(*[job(number, "many") for number in range(64)])
    for number in range(100, 120):
        queue.add(job(number, "one"), None, "one")
        before = 0
        while (running := queue.pop()) is not None and running.model == "many":
            queue.charge(running.job_class, "many", 10)
            before += 1
        assert before <= 1
        queue.charge(JobClass.NORMAL, "one", 4)


def test_a_model_that_waits_as_much_gets_as_much_time_whatever_its_requests_take() -> None:
    queue = queue_of(*[job(number, "ab"[number % 2]) for number in range(200)])
    times = {"a": 0, "b": 0}
    for number in range(200, 300):
        running = queue.pop()
        assert running is not None
        queue.add(job(number, running.model), None, running.model)
        times[running.model] += 3 if running.model == "a" else 1
        queue.charge(running.job_class, running.model, 3 if running.model == "a" else 1)
        assert abs(times["a"] - times["b"]) <= 4


def test_a_model_that_was_idle_has_no_claim_to_the_time() -> None:
    queue = queue_of(*[job(number, "busy") for number in range(50)])
    for _ in range(20):
        running = queue.pop()
        assert running is not None
        queue.charge(running.job_class, "busy", 10)
    for number in range(100, 130):
        queue.add(job(number, "idle"), None, "idle")
    order = []
    for _ in range(6):
        running = queue.pop()
        assert running is not None
        order.append(running.model)
        queue.charge(running.job_class, running.model, 10)
    assert order.count("idle") == 3


def test_who_fills_ten_queues_gets_no_ten_shares_of_the_time() -> None:
    """A client of another model waits for a part of a run of each, not for all of them."""
    numbers = itertools.count()
    flood = [job(next(numbers), f"m{model}") for model in range(10) for _ in range(400)]
    queue = queue_of(*flood)
    times = {"one": 0, "flood": 0}
    queue.add(job(next(numbers), "one"), None, "one")
    for _ in range(1000):
        running = queue.pop()
        assert running is not None
        is_one = running.model == "one"
        if is_one:
            queue.add(job(next(numbers), "one"), None, "one")
        times["one" if is_one else "flood"] += 10
        queue.charge(running.job_class, running.model, 10)
    assert 0.4 < times["one"] / sum(times.values()) < 0.95


def test_several_models_of_a_class_are_asked_for_as_long_as_they_take_turns() -> None:
    queue = queue_of(*[job(number, "a") for number in range(3 * ALIKE)])
    assert not queue.is_contended(JobClass.NORMAL)
    queue.pop()
    queue.add(job(1000, "b"), None, "b")
    queue.charge(JobClass.NORMAL, "a", 10)
    queue.pop()
    queue.pop()
    assert queue.is_contended(JobClass.NORMAL)
    for _ in range(ALIKE):
        assert queue.is_contended(JobClass.NORMAL)
        queue.pop()
    assert not queue.is_contended(JobClass.NORMAL)
    assert not queue.is_contended(JobClass.REALTIME)


def test_deadlines_come_before_turns() -> None:
    queue = queue_of(job(1, "a"), job(2, "b", deadline_ns=50))
    queue.charge(JobClass.NORMAL, "b", 1000)
    assert drained(queue) == [2, 1]


def test_service_is_forgotten_of_models_to_which_it_means_nothing() -> None:
    queue = queue_of()
    for number in range(3 * MOST_SERVED):
        queue.add(job(number, f"m{number}"), None, "m")
        assert queue.pop() is not None
        queue.charge(JobClass.NORMAL, f"m{number}", 1)
    assert queue.remembered <= MOST_SERVED


def test_a_full_queue_refuses_whoever_fills_it() -> None:
    queue: ReadyQueue[Job] = ReadyQueue(bound=6)
    for number in range(6):
        queue.add(job(number, "full"), 9, "full")
    shed = queue.add(job(6, "other"), 9, "other")
    assert shed is not None
    assert (shed.number, shed.model) == (5, "full")
    assert queue.add(job(7, "other"), 9, "other") is not None
    with pytest.raises(UnavailableError, match="BRISK_MAX_WAITING"):
        queue.add(job(8, "full"), 9, "full")
    queue.check_integrity()
    shed = queue.add(job(9, "third"), 9, "third")
    assert shed is not None
    assert shed.model == "full"
    with pytest.raises(UnavailableError, match="BRISK_MAX_WAITING"):
        queue.add(job(10, "other"), 9, "other")
