"""Concurrent clients that check what they are answered."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from brisk.triton.launch import TritonServer
from brisk_client.inference import InferenceClient, Transport
from support.server.entries import deep_answer


@dataclass
class Load:
    """The clients' answers and errors so far."""

    answers: int = 0
    errors: list[str] = field(default_factory=list)
    wrong: int = 0
    """Answers that are not the expected ones."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, right: bool) -> None:
        with self.lock:
            self.answers += 1
            self.wrong += not right


@contextlib.contextmanager
def clients_at_work(server: TritonServer, count: int) -> Iterator[Load]:
    """Let ``count`` clients, half of each protocol, ask ``deep`` without pause until the block
    ends.

    ``deep`` is ``entries.deep(20, 256)``; every answer is checked.
    """
    load, stop = Load(), threading.Event()

    def work(number: int) -> None:
        transport = Transport.GRPC if number % 2 else Transport.HTTP
        url = server.endpoints.grpc if number % 2 else server.endpoints.http
        x = np.random.default_rng(number).random((4, 256), np.float32)
        with InferenceClient(url, transport) as client:
            while not stop.is_set():
                try:
                    answer = client.infer("deep", {"x": x})["y"]
                except Exception as error:  # noqa: BLE001  # any error at all is what is tested
                    with load.lock:
                        load.errors.append(repr(error))
                else:
                    load.note(np.allclose(answer, deep_answer(x, 20), atol=1e-5))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield load
    finally:
        stop.set()
        for thread in threads:
            thread.join(timeout=60)
