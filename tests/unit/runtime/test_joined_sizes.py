"""How many requests a joined run takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from brisk.runtime.batch import Request
from brisk.runtime.turns import Turns
from brisk.scheduling.job import Job, JobClass
from brisk.scheduling.policy import most_urgent_first
from brisk.scheduling.profile import ProfileTable
from brisk.scheduling.queue import ReadyQueue
from brisk.wire.records import Infer, Region, TensorRecord


def turns_with(rows: list[int], max_batch_size: int = 8) -> Turns:
    """Requests of so many rows, waiting, for a model that batches."""
    binding: Any = SimpleNamespace(
        key="m",
        session=object(),
        model=SimpleNamespace(batching=True, max_batch_size=max_batch_size, name="m"),
    )
    peer: Any = SimpleNamespace(number=1)
    queue: ReadyQueue[Request] = ReadyQueue(most_urgent_first)
    nowhere = Region(0, 0, 64)
    for number, count in enumerate(rows):
        tensors = (TensorRecord("x", "FP32", (count, 3), nowhere),)
        record = Infer(number, 1, tensors, ("y",), "normal", None, nowhere, False)
        payload = Request(peer, record, binding, memoryview(bytearray(64)))
        job = Job(number, "m", JobClass.NORMAL, number, None, payload)
        queue.add(job, None, "m")
    return Turns(queue, most_urgent_first, ProfileTable(), lambda: 0)


@pytest.mark.parametrize(
    ("rows", "taken"),
    [
        ([1], [1]),
        ([1, 1, 1], [2, 1]),
        ([1] * 7, [4, 2, 1]),
        ([1] * 20, [8, 8, 4]),
        ([3, 1, 1], [4, 1]),
        ([5, 1], [5, 1]),
    ],
)
def test_joined_runs_have_a_power_of_two_of_rows(rows: list[int], taken: list[int]) -> None:
    turns = turns_with(rows)
    found = []
    while jobs := turns.take():
        found.append(sum(job.payload.record.inputs[0].shape[0] for job in jobs))
    assert found == taken
