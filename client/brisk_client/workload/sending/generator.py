"""A generator process: sends the requests of some tasks, and says what came of them.

Urgent and best-effort tasks have a process each, so that answers of the one never delay a
request of the other; the best-effort one runs at a lower priority (nice). Requests are
serialised once. Its standard input and output carry JSON lines: the order, ``ready``, the start,
then counts as it goes, and the outcome.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import selectors
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import grpc

from brisk_client.workload.results.histogram import Histogram
from brisk_client.workload.results.outcome import TaskOutcome
from brisk_client.workload.results.rows import OK, Row, RowWriter
from brisk_client.workload.sending.requests import (
    SERVICE,
    UNLIMITED,
    make_request,
    model_metadata,
)
from brisk_client.workload.sending.task_client import Ask, TaskClient
from brisk_client.workload.spec.description import Workload
from brisk_client.workload.spec.parsing import parse_workload

DRAIN_S = 5.0
"""How long answers may still come when the workload's time is over."""

REPORT_INTERVAL_S = 0.5

MOST_MESSAGES = 20
"""Different error messages that are kept."""

BEST_EFFORT_NICE = 10

_PR_SET_TIMERSLACK = 29


class Generator:
    """The tasks of ``workload`` that are named, against the server at ``url``."""

    def __init__(self, workload: Workload, names: list[str], url: str, rows: Path | None) -> None:
        """Make the requests. Raises grpc.RpcError, ValueError, OSError."""
        self.outcomes = {
            name: TaskOutcome(name, workload.task(name).job_class or "") for name in names
        }
        self.lag = Histogram()
        self.errors: Counter[str] = Counter()
        self._workload = workload
        self._url = url
        self._writer = RowWriter(rows) if rows is not None else None
        with grpc.insecure_channel(url, options=UNLIMITED) as channel:
            self._requests = {
                name: make_request(
                    workload.task(name),
                    model_metadata(channel, workload.task(name)),
                    workload.seed,
                )
                for name in names
            }

    async def run(self, begin_s: float) -> None:
        """``begin_s``: the start, a time of the loop. Returns when all is answered or drained."""
        async with grpc.aio.insecure_channel(self._url, options=UNLIMITED) as channel:
            call = channel.unary_unary(f"{SERVICE}ModelInfer")
            clients = {
                name: TaskClient(
                    self._workload,
                    self._workload.task(name),
                    self._ask(call, request),
                    self._take,
                    begin_s,
                )
                for name, request in self._requests.items()
            }
            for client in clients.values():
                if client.predecessors is not None:
                    for name in client.predecessors.names:
                        clients[name].followers.append(client.predecessors)
            await self._together([client.run() for client in clients.values()], begin_s)
        if self._writer is not None:
            self._writer.close()

    async def _together(self, runs: list[Any], begin_s: float) -> None:
        last_s = begin_s + self._workload.duration_s + DRAIN_S
        tasks = [asyncio.create_task(run) for run in runs]
        while tasks and asyncio.get_running_loop().time() < last_s:
            _, pending = await asyncio.wait(tasks, timeout=REPORT_INTERVAL_S)
            say({"counts": {name: _counts(each) for name, each in self.outcomes.items()}})
            if not pending:
                break
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)

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
        self.lag.add(row.lag_ns)
        if self._writer is not None:
            self._writer.write(row)


def _counts(outcome: TaskOutcome) -> tuple[int, int, int]:
    return outcome.answered, outcome.failed, outcome.dropped


def say(document: dict[str, Any]) -> None:
    print(json.dumps(document), flush=True)


def main() -> int:
    """Read the order, run, tell. The status is 1 where the tasks could not be prepared."""
    order = json.loads(sys.stdin.readline())
    workload = parse_workload(order["workload"], Path())
    if order["is_best_effort"]:
        os.nice(BEST_EFFORT_NICE)
    with contextlib.suppress(OSError, AttributeError):  # wake-ups on time; no matter elsewhere
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)
    rows = Path(order["rows"]) if order["rows"] else None
    try:
        generator = Generator(workload, order["tasks"], order["url"], rows)
    except grpc.RpcError as error:
        say({"failed": f"{order['url']}: {error.details()}"})
        return 1
    except (ValueError, OSError) as error:
        say({"failed": str(error)})
        return 1
    gc.collect()
    gc.freeze()
    say({"ready": True})
    begin_s = float(json.loads(sys.stdin.readline())["begin_s"])
    used_s = time.process_time()
    # select() waits to the microsecond, epoll in whole milliseconds.
    loop = asyncio.SelectorEventLoop(selectors.SelectSelector())
    asyncio.set_event_loop(loop)
    loop.run_until_complete(generator.run(begin_s))
    say(
        {
            "outcomes": [each.to_document() for each in generator.outcomes.values()],
            "processor_s": time.process_time() - used_s,
            "lag": generator.lag.to_document(),
            "errors": dict(generator.errors),
        }
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
