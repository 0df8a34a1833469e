"""The way of a request, gone with nothing at its end, so that its steps are in the caches.

A worker that has slept, or stood beside best-effort work, has lost its caches: each step of a
request took ten times as long as in a busy one. A frontend announces a request before it copies
its inputs; what is rehearsed meanwhile, on another processor, takes no time of the request.
"""

from __future__ import annotations

from brisk.protocol.codec import decode_record, encode_record
from brisk.protocol.records import Infer, InferForm, Region, TensorForm
from brisk.scheduling.job import Job, JobClass
from brisk.scheduling.policy import OrderingKey
from brisk.scheduling.queue import ReadyQueue

_REGION = Region(0, 0, 64)
_MESSAGE = encode_record(
    Infer(
        1,
        InferForm(
            1, (TensorForm("x", "FP32", (1, 3, 224, 224)),), ("y",), JobClass.REALTIME.value
        ),
        (_REGION,),
        _REGION,
    )
)


class Rehearsal:
    """Touches nothing but a queue of its own."""

    def __init__(self, ordering: OrderingKey) -> None:
        self._queue: ReadyQueue[None] = ReadyQueue(ordering, 1)

    def run(self) -> None:
        record = decode_record(_MESSAGE)
        assert isinstance(record, Infer)
        job_class = JobClass(record.form.job_class)
        self._queue.add(Job(1, "", job_class, 0, record.deadline_ns, None), 1, "")
        self._queue.expire(0)
        self._queue.pop()
