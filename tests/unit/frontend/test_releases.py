"""Outputs' memory goes back to the worker: with the next request, or in a record of its own."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from brisk.frontend.answers import LEISURELY_BYTES, Answers
from brisk.frontend.line import DirectLine
from brisk.frontend.pending import OutputReader, Pending, PendingTable, Reply, stage_request
from brisk.wire.arena import Arena
from brisk.wire.channel import Receiver
from brisk.wire.records import (
    Infer,
    InferForm,
    Record,
    Region,
    Release,
    Result,
    ResultForm,
    TensorForm,
)

FORM = InferForm(0, (), ("y",), "normal")
RESULT = ResultForm((TensorForm("y", "UINT8", (4,)),))


class Quiet(Reply):
    def succeed(self, result: Result, read: OutputReader) -> None:
        pass

    def fail(self, error: Exception) -> None:
        raise error


class Setting:
    """Answers of a line whose other end is read here."""

    def __init__(self) -> None:
        self.arena = Arena()
        self.pending = PendingTable(self.arena)
        self.sockets = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.receiver = Receiver(self.sockets[1])
        self.line = DirectLine(self.arena, "foreground")
        self.line.connect(self.sockets[0])
        self.answers = Answers(
            threading.Lock(), self.line, self.pending, print, print, lambda level, text: None
        )

    def answer(self, number: int, size: int) -> list[Record]:
        """Let request ``number`` be answered with so many bytes; what is sent then."""
        staged = stage_request(self.arena, (), ())
        self.pending.add(Pending(Infer(number, FORM, (), staged.mark), staged.region, Quiet()))
        self.answers.take(Result(number, RESULT, (Region(0, 0, size),), 0, 0, 0), None)
        return self.sent()

    def sent(self) -> list[Record]:
        found = []
        while True:
            try:
                record, descriptor = self.receiver.receive(wait=False)
            except BlockingIOError:
                return [record for record in found if isinstance(record, Release)]
            found.append(record)
            if descriptor is not None:
                os.close(descriptor)


@pytest.fixture
def setting() -> Iterator[Setting]:
    made = Setting()
    yield made
    for end in made.sockets:
        end.close()
    made.arena.close()


def test_a_small_output_waits_for_the_next_request(setting: Setting) -> None:
    assert setting.answer(1, 4) == []
    assert setting.answers.take_released() == 1
    assert setting.answers.take_released() == 0


def test_at_most_one_waits(setting: Setting) -> None:
    assert setting.answer(1, 4) == []
    assert setting.answer(2, 4) == [Release(1)]
    assert setting.answer(3, 4) == [Release(2)]
    assert setting.answers.take_released() == 3


def test_a_large_output_goes_back_at_once(setting: Setting) -> None:
    assert setting.answer(1, 4) == []
    assert setting.answer(2, LEISURELY_BYTES + 1) == [Release(2)]
    assert setting.answers.take_released() == 1


def test_a_dead_workers_memory_is_nobodys(setting: Setting) -> None:
    setting.answer(1, 4)
    setting.answers.clear()
    assert setting.answers.take_released() == 0
