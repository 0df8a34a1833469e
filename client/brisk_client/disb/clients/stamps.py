"""Where a real-time request was when: stamps of three processes, which share the monotonic clock.

The client stamps a request's sending and its answer. While somebody records the foreground
worker's spans (``brisk trace`` does the same), they tell when Triton handed each request to its
stub, when the worker had read it, and when its first layer began. Recording costs a request some
microseconds a layer, all of them after its first layer has begun.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from brisk.protocol.records import Span
from brisk.runtime.worker.tracing import FRONTEND, LAYERS

REALTIME = "realtime"


class UnclearTraceError(Exception):
    """The spans are not those of the requests that were sent."""


@dataclass(frozen=True, slots=True)
class Asked:
    """As the client saw it. ns of the monotonic clock."""

    sent_ns: int
    answered_ns: int

    @property
    def total_ns(self) -> int:
        return self.answered_ns - self.sent_ns


@dataclass(frozen=True, slots=True)
class Way:
    """A request's way to its first layer. ``execute_ns``: Triton handed it to its stub, which has
    not yet read, staged or copied anything of it; ``worker_ns``: the worker read it.
    """

    asked: Asked
    execute_ns: int
    worker_ns: int
    layer_ns: int

    @property
    def from_client_ns(self) -> int:
        return self.layer_ns - self.asked.sent_ns

    @property
    def from_execute_ns(self) -> int:
        return self.layer_ns - self.execute_ns

    @property
    def in_worker_ns(self) -> int:
        return self.layer_ns - self.worker_ns


def ways_of(asked: Sequence[Asked], spans: Sequence[Span]) -> list[Way]:
    """The way of each request of ``asked``, which were sent one after the other.

    ``spans``: of all that the worker did meanwhile. Raises UnclearTraceError where they are not
    of exactly these requests: nothing is guessed.
    """
    ours = [
        span for span in spans if span.lane == FRONTEND and span.name.endswith(f", {REALTIME}")
    ]
    ours.sort(key=lambda span: span.begin_ns)
    if len(ours) != len(asked):
        raise UnclearTraceError(f"{len(asked)} real-time requests, but spans of {len(ours)}")
    begun_ns: dict[str, list[int]] = defaultdict(list)
    for span in spans:
        if span.lane == LAYERS:
            begun_ns[span.request].append(span.begin_ns)
    return [
        _way(each, span, begun_ns[span.request]) for each, span in zip(asked, ours, strict=True)
    ]


def _way(asked: Asked, span: Span, begun_ns: Sequence[int]) -> Way:
    if not begun_ns:
        raise UnclearTraceError(f"no layer of {span.request} was recorded")
    way = Way(asked, span.begin_ns, span.end_ns, min(begun_ns))
    stamps = (asked.sent_ns, way.execute_ns, way.worker_ns, way.layer_ns, asked.answered_ns)
    if list(stamps) != sorted(stamps):
        raise UnclearTraceError(
            f"{span.request}: sent, in its stub, in the worker, first layer, answered: "
            f"{stamps} are not in order"
        )
    return way
