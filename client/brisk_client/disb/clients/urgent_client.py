"""One real-time client of a real server, over gRPC: it asks, pauses, and asks again."""

from __future__ import annotations

import random
import time

import grpc

from brisk.observer import Observer
from brisk.protocol.runtime_paths import Role
from brisk_client.benchmarks.harness.served_server import BenchmarkServer
from brisk_client.disb.clients.stamps import REALTIME, Asked, Way, ways_of
from brisk_client.workload.sending.requests import SERVICE, UNLIMITED, make_request, model_metadata
from brisk_client.workload.spec.description import Continuous, Task

LEAST_PAUSE_S, LONGEST_PAUSE_S = 0.005, 0.025

TRACED_AT_ONCE = 20
"""Requests of one recording: a worker keeps 50,000 spans, one for each layer."""

_TIMEOUT_S = 120.0


class UrgentClient:
    """Asks ``entry`` of ``server``, one request at a time; close at the end.

    Requests are serialised once, as a client with a camera would send tensors that it has.
    """

    def __init__(self, server: BenchmarkServer, entry: str, seed: int) -> None:
        self._server = server
        self._channel = grpc.insecure_channel(server.grpc, options=UNLIMITED)
        task = Task(entry, entry, Continuous(), job_class=REALTIME)
        self._request = make_request(task, model_metadata(self._channel, task), 0)
        self._infer = self._channel.unary_unary(f"{SERVICE}ModelInfer")
        self._source = random.Random(seed)

    def ask(self) -> Asked:
        sent_ns = time.monotonic_ns()
        self._infer(self._request, timeout=_TIMEOUT_S)
        return Asked(sent_ns, time.monotonic_ns())

    def ask_after_pauses(self, count: int) -> list[Asked]:
        """``count`` requests, each LEAST_ to LONGEST_PAUSE_S after the last answer."""
        found = []
        for _ in range(count):
            longest_s = LONGEST_PAUSE_S - LEAST_PAUSE_S
            time.sleep(LEAST_PAUSE_S + self._source.random() * longest_s)
            found.append(self.ask())
        return found

    def ask_traced(self, count: int) -> list[Way]:
        """The same of a server of Brisk's, and where each request was when.

        Raises UnclearTraceError.
        """
        ways: list[Way] = []
        with Observer(self._server.place, Role.FOREGROUND) as observer:
            while len(ways) < count:
                observer.begin_trace()
                asked = self.ask_after_pauses(min(TRACED_AT_ONCE, count - len(ways)))
                ways += ways_of(asked, observer.end_trace())
        return ways

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> UrgentClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
