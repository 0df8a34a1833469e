"""The order of loads: by class, then by arrival, and as urgent as who waits for them."""

from __future__ import annotations

import threading

from brisk.runtime.models.loader import LoadQueue


def drained(queue: LoadQueue[str], count: int) -> list[str]:
    return [queue.get() for _ in range(count)]


def test_the_most_urgent_class_is_loaded_first_and_equals_as_they_came() -> None:
    queue: LoadQueue[str] = LoadQueue()
    queue.put("tidying", None)
    for name, job_class in (("a", "normal"), ("b", "besteffort"), ("c", "realtime")):
        queue.put(name, job_class)
    queue.put("d", "normal")
    assert drained(queue, 5) == ["c", "a", "d", "b", "tidying"]


def test_a_load_inherits_the_class_of_a_request_that_waits_for_it() -> None:
    queue: LoadQueue[str] = LoadQueue()
    for name in "abc":
        queue.put(name, "normal")
    queue.hurry("c", "realtime")
    queue.hurry("c", "besteffort")
    queue.hurry("b", "normal")
    assert drained(queue, 3) == ["c", "a", "b"]
    queue.hurry("c", "realtime")
    queue.put("last", "normal")
    assert drained(queue, 1) == ["last"], "what is taken comes no second time"


def test_who_takes_waits_for_what_is_put() -> None:
    queue: LoadQueue[str] = LoadQueue()
    taken: list[str] = []
    thread = threading.Thread(target=lambda: taken.append(queue.get()))
    thread.start()
    queue.put("a", "normal")
    thread.join(timeout=10.0)
    assert taken == ["a"]


def test_a_task_is_awaited_for_so_long_and_not_taken() -> None:
    queue: LoadQueue[str] = LoadQueue()
    assert not queue.await_task(0.01)
    queue.put("a", "normal")
    assert queue.await_task(0)
    assert drained(queue, 1) == ["a"]
