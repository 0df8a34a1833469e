"""Before a run: every model answers, and periodic tasks know their phases."""

from __future__ import annotations

import dataclasses
import statistics
import time

import grpc

from brisk_client.workload.sending.coordination import coordinate, needs_coordination
from brisk_client.workload.sending.requests import SERVICE, UNLIMITED, make_request, model_metadata
from brisk_client.workload.spec.description import Task, Workload
from brisk_client.workload.spec.errors import WorkloadFailedError

_TIMEOUT_S = 120.0
_ALONE_REQUESTS = 5


def warm_up(workload: Workload, url: str, requests: int) -> Workload:
    """Ask every task's model a few times, one after the other, and fix all phases.

    Raises WorkloadFailedError naming the task whose model does not answer.
    """
    timed = needs_coordination(workload)
    alone_s: dict[str, float] = {}
    with grpc.insecure_channel(url, options=UNLIMITED) as channel:
        for task in workload.tasks:
            count = requests + (_ALONE_REQUESTS if task.name in timed else 0)
            try:
                times_s = _ask_alone(channel, task, workload.seed, count)
            except grpc.RpcError as error:
                raise WorkloadFailedError(
                    f"task '{task.name}': model '{task.model}' at {url}: {error.details()}"
                ) from None
            except ValueError as error:
                raise WorkloadFailedError(str(error)) from None
            if task.name in timed:
                alone_s[task.name] = statistics.median(times_s[requests:])
    return coordinate(workload, alone_s)


def _ask_alone(channel: grpc.Channel, task: Task, seed: int, count: int) -> list[float]:
    """Times of ``count`` requests, one after the other; without deadline, as the first ones of a
    model may well be late.
    """
    task = dataclasses.replace(task, deadline_s=None)
    request = make_request(task, model_metadata(channel, task), seed)
    infer = channel.unary_unary(f"{SERVICE}ModelInfer")
    times_s = []
    for _ in range(count):
        before_s = time.monotonic()
        infer(request, timeout=_TIMEOUT_S)
        times_s.append(time.monotonic() - before_s)
    return times_s
