"""Clients of a real server over gRPC, and the times of a real-time request on its way.

The client stamps a request's sending and its answer. If the foreground worker's spans are recorded
(``brisk trace`` does the same), they show when Triton handed each request to its stub, when the
worker had read it, and when its first segment began; all three processes share the monotonic
clock. Recording costs a request some microseconds a segment, all of them after its first segment
has begun.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

import grpc

from brisk.protocol.records import Span
from brisk.protocol.runtime_paths import Role
from brisk.runtime.requests.tracing import FRONTEND, SEGMENTS
from brisk.telemetry.observer import Observer
from brisk_bench.harness.served_server import BenchmarkServer
from brisk_client.workload.child_process import child_process
from brisk_client.workload.description import Continuous, Task
from brisk_client.workload.generator import BEST_EFFORT_NICE
from brisk_client.workload.requests import ANSWER_TIMEOUT_S, UNLIMITED, request_sender

REALTIME = "realtime"

LEAST_PAUSE_S, LONGEST_PAUSE_S = 0.005, 0.025

TRACED_AT_ONCE = 20
"""The most requests of one recording: a worker keeps 50,000 spans, one for each segment."""

_END_TIMEOUT_S = 60.0


class UnclearTraceError(Exception):
    """The spans are not those of the requests that were sent."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The times of a request as the client saw them, in ns of the monotonic clock."""

    sent_ns: int
    answered_ns: int

    @property
    def total_ns(self) -> int:
        return self.answered_ns - self.sent_ns


@dataclass(frozen=True, slots=True)
class Way:
    """How long a request took to its first segment.

    ``from_client_ns``: from its client's sending.
    ``from_execute_ns``: from when Triton handed it to its stub, which had not yet read, staged or
      copied anything of it.
    ``in_worker_ns``: from when the worker had read it.
    """

    asked: Asked
    from_client_ns: int
    from_execute_ns: int
    in_worker_ns: int


def ways_of(asked: Sequence[Asked], spans: Sequence[Span]) -> list[Way]:
    """Return the way of each request of ``asked``, which were sent one after the other.

    ``spans``: of all that the worker did meanwhile. Raises UnclearTraceError unless they are of
      exactly these requests: nothing is guessed.
    """
    ours = [
        span for span in spans if span.lane == FRONTEND and span.name.endswith(f", {REALTIME}")
    ]
    ours.sort(key=lambda span: span.begin_ns)
    if len(ours) != len(asked):
        raise UnclearTraceError(f"{len(asked)} real-time requests, but spans of {len(ours)}")
    begun_ns: dict[str, list[int]] = defaultdict(list)
    for span in spans:
        if span.lane == SEGMENTS:
            begun_ns[span.request].append(span.begin_ns)
    return [
        _way(each, span, begun_ns[span.request]) for each, span in zip(asked, ours, strict=True)
    ]


def _way(asked: Asked, span: Span, begun_ns: Sequence[int]) -> Way:
    if not begun_ns:
        raise UnclearTraceError(f"no segment of {span.request} was recorded")
    segment_ns = min(begun_ns)
    stamps = [asked.sent_ns, span.begin_ns, span.end_ns, segment_ns, asked.answered_ns]
    if stamps != sorted(stamps):
        raise UnclearTraceError(
            f"{span.request}: sent, in its stub, in the worker, first segment, answered: "
            f"{stamps} are not in order"
        )
    return Way(asked, *(segment_ns - stamp_ns for stamp_ns in stamps[:3]))


class UrgentClient:
    """A context manager that asks ``entry`` of ``server``, one real-time request at a time.

    The request is serialised once, as by a client with a camera, which sends tensors that it has.
    """

    def __init__(self, server: BenchmarkServer, entry: str, seed: int) -> None:
        self._server = server
        self._channel = grpc.insecure_channel(server.grpc, options=UNLIMITED)
        self._send = request_sender(self._channel, closed_loop(entry, REALTIME))
        self._source = random.Random(seed)

    def ask(self) -> Asked:
        sent_ns = time.monotonic_ns()
        self._send()
        return Asked(sent_ns, time.monotonic_ns())

    def ask_after_pauses(self, count: int) -> list[Asked]:
        """Send ``count`` requests, each LEAST_PAUSE_S to LONGEST_PAUSE_S after the last answer."""
        answers = []
        for _ in range(count):
            longest_s = LONGEST_PAUSE_S - LEAST_PAUSE_S
            time.sleep(LEAST_PAUSE_S + self._source.random() * longest_s)
            answers.append(self.ask())
        return answers

    def ask_traced(self, count: int) -> list[Way]:
        """Ask a Brisk server as ``ask_after_pauses`` does; return each request's way.

        Raises UnclearTraceError.
        """
        ways: list[Way] = []
        with Observer(self._server.place, Role.FOREGROUND) as observer:
            while len(ways) < count:
                observer.begin_trace()
                answers = self.ask_after_pauses(min(TRACED_AT_ONCE, count - len(ways)))
                ways += ways_of(answers, observer.end_trace())
        return ways

    def __enter__(self) -> UrgentClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()


def closed_loop(entry: str, job_class: str) -> Task:
    """Return a client of an entry; only its requests' content is used."""
    return Task(entry, entry, Continuous(), job_class=job_class)


@contextlib.contextmanager
def asked_without_pause(url: str, entry: str) -> Iterator[None]:
    """Keep one request for ``entry`` in flight while entered, the next as soon as it is answered.

    Another process sends them than the one that measures latencies, and a nicer one, so that the
    two share neither an interpreter nor a turn. Raises TimeoutError if the first is not answered,
    ConnectionError if the client failed meanwhile.
    """
    what = f"the client of '{entry}'"
    with child_process(what, _ask_without_pause, url, entry, end_s=_END_TIMEOUT_S) as client:
        client.hear(ANSWER_TIMEOUT_S)
        yield
        client.check()


def _ask_without_pause(parent: Connection, url: str, entry: str) -> None:
    """Send requests, as the child process, until the parent closes its end."""
    os.nice(BEST_EFFORT_NICE)
    with grpc.insecure_channel(url, options=UNLIMITED) as channel:
        send = request_sender(channel, closed_loop(entry, "besteffort"))
        send()
        parent.send("asking")
        while not parent.poll():
            send()
