"""Thousands of damaged messages against a living worker: it serves on, in the memory it had."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

import numpy as np

from brisk import __version__
from brisk.protocol.channel import Receiver, encode_record, send_record
from brisk.protocol.records import (
    PROTOCOL_VERSION,
    AskStatistics,
    AskStatus,
    AskTrace,
    BeginTrace,
    Cancel,
    DetachSlab,
    ForgetStatistics,
    Hello,
    Infer,
    InferForm,
    LoadModel,
    Record,
    Region,
    Release,
    TensorForm,
)
from brisk.protocol.runtime_paths import RuntimePaths
from support.records import bend
from support.runtime.runtime_process import attach, describe, infer, opened, worker_of

WARM_UP_MESSAGES = 2000
"""Before the memory is looked at: what a young worker does beside requests (its first kernels, a
heap for each new thread, memory taken ahead) comes to 10 to 42 MB and then stays."""

MESSAGES = 4000
GROWTH_LIMIT_BYTES = 8 << 20
"""A leak of 4 KiB with each message would be twice that."""

ROW = np.ones((1, 4), np.float32)
MARK = Region(0, 0, 64)


def records(model: Path) -> list[Record]:
    form = InferForm(0, (TensorForm("x", "FP32", (1, 4)),), ("y",), "normal")
    return [
        LoadModel("m", 1, str(model), 0, False, 8, "normal", mark=MARK),
        Infer(1, form, (Region(0, 64, 16),), MARK),
        Cancel(1),
        Release(1),
        DetachSlab(0),
        AskStatistics(True),
        ForgetStatistics(),
        AskStatus(10),
        BeginTrace(),
        AskTrace(),
        Hello(PROTOCOL_VERSION, __version__, 1, 0),
    ]


def welcomed(place: RuntimePaths) -> socket.socket:
    connection = place.connect(30.0)
    send_record(connection, Hello(PROTOCOL_VERSION, __version__, 1, 0))
    Receiver(connection).receive()
    attach(connection)
    return connection


def resident_bytes(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096


def test_damaged_messages_leave_the_worker_as_it_was(place: RuntimePaths, quick: Path) -> None:
    chance = random.Random(0)
    with opened(place, describe(quick)) as good:
        infer(good, ROW)
        worker = worker_of(place)
        before_bytes = 0
        kinds = [encode_record(record) for record in records(quick)]
        connection = welcomed(place)
        dropped = 0
        for number in range(WARM_UP_MESSAGES + MESSAGES):
            if number == WARM_UP_MESSAGES:
                before_bytes = resident_bytes(worker)
            data = chance.choice(kinds)
            message = bend(data, chance) if chance.random() < 0.5 else data
            try:
                connection.send(message or b"[]")
            except OSError:
                dropped += 1
                connection.close()
                connection = welcomed(place)
            if number % 100 == 0:
                assert np.array_equal(infer(good, ROW), -ROW)
                connection.setblocking(False)
                with contextlib.suppress(OSError):
                    while connection.recv(1 << 18):
                        pass
                connection.settimeout(30.0)
        connection.close()
        assert dropped > 20, "most damaged messages end the connection"
        assert np.array_equal(infer(good, ROW), -ROW)
        assert worker_of(place) == worker
        assert resident_bytes(worker) - before_bytes < GROWTH_LIMIT_BYTES
