"""The order of loads: by class, then by arrival, and as urgent as who waits for them."""

from __future__ import annotations

import threading

import pytest

from brisk.runtime.models.load_queue import LoadQueue
from support.waiting import wait_until


def drained(queue: LoadQueue[str], count: int) -> list[str]:
    names = []
    for _ in range(count):
        name, begun_s = queue.take()
        queue.done(begun_s)
        names.append(name)
    return names


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
    queue.raise_priority("c", "realtime")
    queue.raise_priority("c", "besteffort")
    queue.raise_priority("b", "normal")
    assert drained(queue, 3) == ["c", "a", "b"]
    queue.raise_priority("c", "realtime")
    queue.put("last", "normal")
    assert drained(queue, 1) == ["last"], "what is taken comes no second time"


def test_what_is_discarded_is_left_out_unless_it_is_taken() -> None:
    queue: LoadQueue[str] = LoadQueue()
    for name in "abc":
        queue.put(name, "normal")
    assert drained(queue, 1) == ["a"]
    for name in "ab":
        queue.discard(name)
    assert drained(queue, 1) == ["c"]
    assert queue.is_empty()


def test_who_takes_waits_for_what_is_put() -> None:
    queue: LoadQueue[str] = LoadQueue()
    taken: list[str] = []
    thread = threading.Thread(target=lambda: taken.append(queue.take()[0]))
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


def test_tasks_are_done_one_at_a_time_and_none_waits_for_a_slow_one() -> None:
    queue: LoadQueue[str] = LoadQueue(slow_s=0.3)
    goes_on = threading.Event()
    began: list[str] = []
    ended: list[str] = []

    def work(task: str) -> None:
        began.append(task)
        if task.startswith("endless"):
            goes_on.wait(30)
        ended.append(task)

    queue.serve(work, "loads")
    for task in ("quick0", "endless1", "quick2", "endless3", "quick4"):
        queue.put(task, "normal")
    wait_until(lambda: began == ["quick0", "endless1"], "the first ones")
    assert began == ["quick0", "endless1"], "the next one waits until it is known to be slow"
    wait_until(lambda: "quick4" in ended, "the last one")
    assert ended == ["quick0", "quick2", "quick4"]
    goes_on.set()
    wait_until(lambda: len(ended) == 5, "all")


def test_where_the_system_has_no_thread_left_a_task_waits_for_those_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue: LoadQueue[str] = LoadQueue()
    goes_on = threading.Event()
    began: list[str] = []

    def work(task: str) -> None:
        began.append(task)
        goes_on.wait(30)

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    queue.serve(work, "loads")
    queue.put("first", "normal")
    wait_until(lambda: began == ["first"], "the first one")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        queue.put("second", "normal")
    queue.put("third", "normal")  # which starts a thread, for the second
    wait_until(lambda: began == ["first", "second"], "the second one")
    goes_on.set()
    wait_until(lambda: began == ["first", "second", "third"], "the third one")
