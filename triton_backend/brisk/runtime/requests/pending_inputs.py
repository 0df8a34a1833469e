"""Requests whose records came ahead of their inputs, which a frontend is still copying.

The worker reads and checks a record while another processor copies; what it saves is a third of a
small request's way here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

from brisk.protocol.records import Infer
from brisk.protocol.shared_memory import request_flags
from brisk.runtime.requests.connections import Peer

AWAKE_NS = 300_000
"""How long inputs are awaited without sleeping; copying the largest takes two thirds of it."""

ASLEEP_S = 0.001
"""Between two looks from then on: their frontend has lost its processor."""

_Request: TypeAlias = tuple[Peer, Infer, memoryview]


class Arriving:
    """Used by the worker's main thread."""

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock_ns = clock_ns
        self._requests: list[_Request] = []
        self._since_ns = 0
        """When the last one came."""

    def __bool__(self) -> bool:
        return bool(self._requests)

    @property
    def patience_s(self) -> float:
        """How long the worker may sleep while it awaits inputs."""
        return 0.0 if self._clock_ns() < self._since_ns + AWAKE_NS else ASLEEP_S

    def add(self, peer: Peer, record: Infer, memory: memoryview) -> None:
        """``memory``: the request's mark."""
        self._since_ns = self._clock_ns()
        self._requests.append((peer, record, memory))

    def wait(self) -> None:
        """Until the inputs of the first request have come, without sleeping, for a moment."""
        memory = self._requests[0][2]
        until_ns = self._since_ns + AWAKE_NS
        while not request_flags.has_inputs(memory) and self._clock_ns() < until_ns:
            pass

    def take(self) -> list[tuple[Peer, Infer]]:
        """Those whose inputs have come, in the order of their records."""
        come: list[_Request] = []
        still: list[_Request] = []
        for request in self._requests:
            (come if request_flags.has_inputs(request[2]) else still).append(request)
        self._requests = still
        return [(peer, record) for peer, record, _ in come]

    def withdraw(self, peer: Peer, request: int) -> bool:
        """Forget one; False where it is not here."""
        before = len(self._requests)
        self._requests = [
            each for each in self._requests if not (each[0] is peer and each[1].request == request)
        ]
        return len(self._requests) < before

    def forget(self, peer: Peer) -> None:
        """Forget all of a peer that has gone."""
        self._requests = [each for each in self._requests if each[0] is not peer]
