"""Clients of `brisk bench throughput`: each a process with one request in flight.

They send bytes that were made before, over a connection each, so that what a client costs is small
and the same for all sides. All clients know when a run begins and ends.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy as np

from brisk_client.workload.child_process import Child, child_process

METHOD = "/inference.GRPCInferenceService/ModelInfer"
TIMEOUT_S = 60.0

_READY_S = 0.3
"""The time from the message to the clients until the beginning: all have received it by then."""

Asking = Callable[[bytes], None]


class Target(NamedTuple):
    """A server's address for one transport.

    ``transport``: GRPC or HTTP.
    ``requests``: names of requests, which ``Clients.give`` has given.
    """

    transport: str
    address: str
    requests: Sequence[str]


@dataclass(frozen=True, slots=True)
class Load:
    """One run of clients.

    ``warm_up_s``: before the beginning, uncounted.
    ``pace_s``: from one request of a client to its next; None: each as soon as it may.
    ``weights``: how often each of the target's requests is sent; all alike if empty.
    """

    target: Target
    seconds: float
    warm_up_s: float
    pace_s: float | None = None
    weights: Sequence[float] = ()


class Measured(NamedTuple):
    """The result of one load.

    ``latency_s``: of all requests that began in its time, from when each was due.
    ``per_s``: answers a second.
    ``errors``: their texts.
    """

    latency_s: np.ndarray
    per_s: float
    errors: list[str]


class Clients:
    """The client processes, of which a run takes some."""

    def __init__(self, children: Sequence[Child]) -> None:
        self._children = children

    def give(self, requests: Mapping[str, bytes]) -> None:
        """Give the clients requests as bytes, by the names that targets use."""
        for child in self._children:
            child.say(dict(requests))

    def measure(
        self, load: Load, count: int, during: Callable[[float, float], None] | None = None
    ) -> Measured:
        """Run a load with ``count`` of the clients.

        ``during``: called with the begin and the end, by ``time.monotonic``, to look at the server
          meanwhile. Raises ConnectionError if a client has died, TimeoutError if one does not
          answer.
        """
        begin_s = time.monotonic() + _READY_S + load.warm_up_s
        chosen = self._children[:count]
        for number, child in enumerate(chosen):
            child.say((load, begin_s, number, count))
        if during is not None:
            during(begin_s, begin_s + load.seconds)
        times, errors = [], []
        for child in chosen:
            data, failed = child.hear(load.warm_up_s + load.seconds + 2 * TIMEOUT_S)
            times.append(np.frombuffer(data, np.float64))
            errors += failed
        latency_s = np.concatenate(times)
        return Measured(latency_s, len(latency_s) / load.seconds, errors)


@contextlib.contextmanager
def clients(count: int) -> Iterator[Clients]:
    """Run ``count`` processes, forked from one that has imported what they need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "grpc"])
    with contextlib.ExitStack() as stack:
        children = [
            stack.enter_context(child_process(f"client {number}", _serve, context=context))
            for number in range(count)
        ]
        yield Clients(children)


# --- a client's process ----------------------------------------------------------------------


def _serve(parent: Connection) -> None:
    requests: dict[str, bytes] = {}
    asking: dict[tuple[str, str], Asking] = {}
    while True:
        try:
            message = parent.recv()
        except EOFError:
            return
        if isinstance(message, dict):
            requests = message
            continue
        load, begin_s, number, count = message
        target = load.target
        key = target.transport, target.address
        if key not in asking:
            asking[key] = _CONNECT[target.transport](target.address)
        picked = [requests[name] for name in target.requests]
        parent.send(_measure(load, asking[key], picked, begin_s, number, count))


def _measure(
    load: Load, ask: Asking, requests: Sequence[bytes], begin_s: float, number: int, count: int
) -> tuple[bytes, list[str]]:
    """Return times of the requests that were due between the beginning and the end, and errors."""
    weights = np.array(load.weights or [1.0] * len(requests))
    draws = np.random.default_rng(number).choice(len(requests), 4096, p=weights / weights.sum())
    times_s, errors = array("d"), []
    end_s = begin_s + load.seconds
    due_s = begin_s - load.warm_up_s
    time.sleep(max(0.0, due_s - time.monotonic()))
    if load.pace_s is not None:
        due_s += load.pace_s * number / count
    position = 0
    while True:
        now_s = time.monotonic()
        if load.pace_s is None:
            due_s = now_s
        elif now_s < due_s:
            time.sleep(due_s - now_s)
        if due_s >= end_s:
            break
        try:
            ask(requests[draws[position % len(draws)]])
        except Exception as error:  # noqa: BLE001  # whatever it is, it is counted
            errors.append(f"{type(error).__name__}: {error}"[:200])
            if len(errors) > 100:
                break
        else:
            if due_s >= begin_s:
                times_s.append(time.monotonic() - due_s)
        position += 1
        if load.pace_s is not None:
            due_s += load.pace_s
    return times_s.tobytes(), errors[:5]


def _by_grpc(address: str) -> Asking:
    import grpc

    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    call = grpc.insecure_channel(address, unlimited).unary_unary(METHOD)

    def ask(request: bytes) -> None:
        call(request, timeout=TIMEOUT_S)

    return ask


def _by_http(address: str) -> Asking:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=TIMEOUT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(request: bytes) -> None:
        connection.sendall(request)
        data = connection.recv(65536)
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += _more(connection)
        head = data[:end].lower()
        length = int(head.partition(b"\r\ncontent-length:")[2].split(b"\r", 1)[0])
        missing_bytes = end + 4 + length - len(data)
        while missing_bytes > 0:  # also of an error: what is left would be the next answer
            missing_bytes -= len(_more(connection))
        if not head.startswith(b"http/1.1 200"):
            raise ConnectionError(str(data[:200], "latin-1"))

    return ask


def _more(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise ConnectionError("the server has closed the connection")
    return data


GRPC, HTTP = "gRPC", "HTTP"
_CONNECT = {GRPC: _by_grpc, HTTP: _by_http}
