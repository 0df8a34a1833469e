"""How many requests a joined run takes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from brisk.protocol.records import TensorForm
from brisk.runtime.requests.batch import LONGEST_JOINED_NS, take_batch
from brisk.runtime.requests.table import Request
from brisk.scheduling.job_class import JobClass
from brisk.scheduling.queue import ReadyQueue
from brisk.scheduling.times import ProfileTable
from support.runtime.requests import ASession, a_model, a_request


def batches_of(
    rows: list[int],
    max_batch_size: int = 8,
    job_class: JobClass = JobClass.NORMAL,
    deadline_ns: int | None = None,
    run_ns: int | None = None,
) -> Callable[[], list[Request]]:
    """Requests of so many rows, waiting, for a model that batches; each takes ``run_ns`` alone."""
    model, session = a_model(max_batch_size=max_batch_size), ASession()
    queue: ReadyQueue[Request] = ReadyQueue()
    profiles = ProfileTable()
    for number, count in enumerate(rows):
        tensors = (TensorForm("x", "FP32", (count, 3)),)
        request = a_request(number, model, session, tensors, deadline_ns, job_class)
        queue.add(request, None, "m")
        if run_ns is not None:
            profiles.find(request.profile_key).learn(run_ns)
    return lambda: take_batch(queue, profiles, None, lambda: 0)


@pytest.mark.parametrize(
    ("rows", "taken"),
    [
        ([1], [1]),
        ([1, 1, 1], [2, 1]),
        ([1] * 7, [4, 2, 1]),
        ([1] * 20, [8, 8, 4]),
        ([3, 1, 1], [4, 1]),
        ([5, 1], [5, 1]),
        ([0, 1, 1], [0, 2]),
        ([-1, 1], [-1, 1]),
    ],
)
def test_joined_runs_have_a_power_of_two_of_rows(rows: list[int], taken: list[int]) -> None:
    take = batches_of(rows)
    found = []
    while jobs := take():
        found.append(sum(job.record.form.inputs[0].shape[0] for job in jobs))
    assert found == taken


@pytest.mark.parametrize(("batching", "joined"), [(True, 2), (False, 1)])
def test_a_request_of_an_entry_that_asks_for_no_batching_joins_no_run_of_another_s(
    batching: bool, joined: int
) -> None:
    """Two entries of one file share its session."""
    model, session = a_model(max_batch_size=8), ASession()
    queue: ReadyQueue[Request] = ReadyQueue()
    for number, each in enumerate((model, model._replace(name="other", batching=batching))):
        request = a_request(number, each, session, (TensorForm("x", "FP32", (1, 3)),))
        queue.add(request, None, "m")
    assert len(take_batch(queue, ProfileTable(), None, lambda: 0)) == joined


@pytest.mark.parametrize(
    ("deadline_ns", "run_ns", "joined"),
    [
        (None, 100, 1),  # nothing says that it may wait
        (1000, None, 1),  # nothing says how long it would
        (1000, 100, 4),
        (350, 100, 3),  # four, one after the other, would end at 400
        (150, 100, 1),
    ],
)
def test_real_time_requests_are_joined_only_where_all_are_in_time_even_one_after_the_other(
    deadline_ns: int | None, run_ns: int | None, joined: int
) -> None:
    take = batches_of([1] * 4, 8, JobClass.REALTIME, deadline_ns, run_ns)
    assert len(take()) == joined


def test_beside_other_models_no_run_gets_long_by_joining() -> None:
    def taken(*, is_contended: bool, run_ns: int) -> int:
        model, session = a_model(max_batch_size=16), ASession()
        queue: ReadyQueue[Request] = ReadyQueue()
        profiles = ProfileTable()
        for number in range(16):
            tensors = (TensorForm("x", "FP32", (1, 3)),)
            request = a_request(number, model, session, tensors)
            queue.add(request, None, "m")
            profiles.find(request.profile_key).learn(run_ns)
        if is_contended:
            other = a_request(100, model, session, (), job_class=JobClass.NORMAL)
            other.model = "other"
            queue.add(other, None, "other")
            queue.charge(JobClass.NORMAL, request.model, 1)
            assert queue.pop() is other
            first = queue.pop()
            assert first is not None
            queue.put_back(first)
        return len(take_batch(queue, profiles, None, lambda: 0))

    assert taken(is_contended=False, run_ns=LONGEST_JOINED_NS) == 16
    assert taken(is_contended=True, run_ns=LONGEST_JOINED_NS // 4) == 4
    assert taken(is_contended=True, run_ns=LONGEST_JOINED_NS // 100) == 16
