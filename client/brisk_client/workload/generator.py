"""A generator process: sends the requests of some tasks, and reports the outcome.

Urgent and best-effort tasks have separate processes, so that answers of the one never delay a
request of the other; the best-effort one runs at a lower priority (nice). Requests are serialised
once. The process sends ``ready``, receives the time to start, then sends ``counts`` as it goes and
``ended`` with the outcome; or ``failed`` with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import selectors
import time
from collections import Counter
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import grpc

from brisk_client.workload.description import Workload
from brisk_client.workload.requests import INFER, UNLIMITED, make_request, model_metadata
from brisk_client.workload.results import OK, GeneratorOutcome, Row, RowWriter, TaskOutcome
from brisk_client.workload.task_client import Ask, TaskClient

DRAIN_S = 5.0
"""How long answers are awaited after the workload's time is over."""

REPORT_INTERVAL_S = 0.5

MOST_MESSAGES = 20
"""The most different error messages that are kept."""

BEST_EFFORT_NICE = 10

_PR_SET_TIMERSLACK = 29


def generate(
    runner: Connection,
    workload: Workload,
    names: list[str],
    url: str,
    is_best_effort: bool,
    rows: Path | None,
) -> None:
    """Run the process: the named tasks of ``workload``, against the server at ``url``."""
    if is_best_effort:
        os.nice(BEST_EFFORT_NICE)
    with contextlib.suppress(OSError, AttributeError):  # wake-ups on time; no matter elsewhere
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)
    try:
        generator = Generator(workload, names, url, rows)
    except grpc.RpcError as error:
        runner.send(("failed", f"{url}: {error.details()}"))
        return
    except (ValueError, OSError) as error:
        runner.send(("failed", str(error)))
        return
    gc.collect()
    gc.freeze()
    runner.send(("ready", None))
    begin_s = runner.recv()
    used_s = time.process_time()
    # select() waits to the microsecond, epoll in whole milliseconds.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    asyncio.set_event_loop(loop)
    loop.run_until_complete(generator.run(begin_s, lambda counts: runner.send(("counts", counts))))
    outcomes = list(generator.outcomes.values())
    used_s = time.process_time() - used_s
    runner.send(("ended", GeneratorOutcome(outcomes, used_s, generator.errors)))


class Generator:
    """Runs the clients of some tasks in one event loop."""

    def __init__(self, workload: Workload, names: list[str], url: str, rows: Path | None) -> None:
        """Make the requests. Raises grpc.RpcError, ValueError, OSError."""
        tasks = [workload.task(name) for name in names]
        self.outcomes = {task.name: TaskOutcome(task.name, task.job_class or "") for task in tasks}
        self.errors: Counter[str] = Counter()
        self._workload = workload
        self._url = url
        self._writer = RowWriter(rows) if rows is not None else None
        with grpc.insecure_channel(url, options=UNLIMITED) as channel:
            self._requests = {
                task.name: make_request(task, model_metadata(channel, task), workload.seed)
                for task in tasks
            }

    async def run(
        self, begin_s: float, watch: Callable[[Mapping[str, tuple[int, int, int]]], None]
    ) -> None:
        """Send all requests; return when all are answered, or ``DRAIN_S`` after the workload.

        ``begin_s``: the start, a time of the loop. ``watch`` is called with the numbers answered,
        failed and dropped, by task, every REPORT_INTERVAL_S and at the end.
        """
        workload = self._workload
        async with grpc.aio.insecure_channel(self._url, options=UNLIMITED) as channel:
            call = channel.unary_unary(INFER)
            clients = {
                name: TaskClient(
                    workload, workload.task(name), self._ask(call, request), self._take, begin_s
                )
                for name, request in self._requests.items()
            }
            for client in clients.values():
                if client.predecessors is not None:
                    for name in client.predecessors.names:
                        clients[name].followers.append(client.predecessors)
            tasks = [asyncio.create_task(client.run()) for client in clients.values()]
            last_s = begin_s + workload.duration_s + DRAIN_S
            while asyncio.get_running_loop().time() < last_s:
                _, pending = await asyncio.wait(tasks, timeout=REPORT_INTERVAL_S)
                watch(
                    {
                        name: (each.answered, each.failed, each.dropped)
                        for name, each in self.outcomes.items()
                    }
                )
                if not pending:
                    break
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks)
        if self._writer is not None:
            with contextlib.suppress(OSError):  # the rows that are lost have been counted
                self._writer.close()

    def _ask(self, call: Any, request: bytes) -> Ask:
        async def ask() -> str:
            try:
                await call(request)
            except grpc.aio.AioRpcError as error:
                if len(self.errors) < MOST_MESSAGES or error.details() in self.errors:
                    self.errors[str(error.details())] += 1
                return str(error.code().name)
            return OK

        return ask

    def _take(self, row: Row) -> None:
        self.outcomes[row.task].add(row)
        if self._writer is not None:
            try:
                self._writer.write(row)
            except OSError as error:  # the requests go on, and are counted all the same
                self.errors[f"a row is not written: {error}"] += 1
