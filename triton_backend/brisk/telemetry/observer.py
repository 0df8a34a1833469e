"""Observation of a running runtime from another process: it queries workers, and starts or changes
nothing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from brisk.errors import ProtocolError, UnavailableError
from brisk.protocol.channel import Receiver, greet, send_record
from brisk.protocol.records import (
    AskStatistics,
    AskStatus,
    AskTrace,
    BeginTrace,
    Record,
    Sample,
    Span,
    StatisticsTold,
    TraceTold,
)
from brisk.protocol.runtime_paths import WORKER_NAMES, Role, RuntimePaths
from brisk.protocol.status import Status
from brisk.protocol.stub_process import parent_of

TIMEOUT_S = 10.0
"""The longest wait for a worker: it answers between two segments, and a best-effort one gets only
idle processors."""

INCIDENTS = 20

Answered = TypeVar("Answered", Status, StatisticsTold, TraceTold)
Parted = TypeVar("Parted", StatisticsTold, TraceTold)


class Observer:
    """An observer's connection to one worker; use as a context manager. Not for several threads.

    Raises UnavailableError if no worker answers, ProtocolError if it is of another Brisk.
    """

    def __init__(self, place: RuntimePaths, role: Role) -> None:
        self._socket_path = place.socket_path(role)
        try:
            self._connection = place.connect(TIMEOUT_S, role)
        except OSError as error:
            raise UnavailableError(
                f"no runtime of {place.device} answers at {self._socket_path} "
                f"({error.strerror or error}): no server with a model of Brisk's runs, or "
                "BRISK_RUNTIME_DIR is not the server's, or was removed under it"
            ) from error
        try:
            self.pid = greet(self._connection).pid
        except (OSError, EOFError) as error:
            self._connection.close()
            raise self._silence(error) from error
        except BaseException:
            self._connection.close()
            raise
        self._receiver = Receiver(self._connection)

    def send(self, record: Record) -> None:
        send_record(self._connection, record)

    def receive(self) -> Record:
        """Return the next record from the worker; a descriptor that comes with it is closed.
        Raises UnavailableError if none comes."""
        try:
            record, descriptor = self._receiver.receive()
        except (OSError, EOFError) as error:
            raise self._silence(error) from error
        if descriptor is not None:
            os.close(descriptor)
        return record

    def _silence(self, error: Exception) -> UnavailableError:
        return UnavailableError(f"the worker at {self._socket_path} did not answer: {error}")

    def status(self) -> Status:
        self.send(AskStatus(INCIDENTS))
        return self._answer(Status)

    def _answer(self, kind: type[Answered]) -> Answered:
        answer = self.receive()
        if not isinstance(answer, kind):
            raise ProtocolError(f"expected {kind.__name__}, got {type(answer).__name__}")
        return answer

    def _parts(self, kind: type[Parted]) -> Iterator[Parted]:
        """Yield the records of an answer, up to the last one."""
        while not (part := self._answer(kind)).is_last:
            yield part
        yield part

    def statistics(self) -> list[Sample]:
        """Return everything that the worker has counted since it began."""
        self.send(AskStatistics(takes_news=False))
        return [sample for told in self._parts(StatisticsTold) for sample in told.samples]

    def begin_trace(self) -> None:
        """Let the worker record spans until ``end_trace``."""
        self.send(BeginTrace())

    def end_trace(self) -> list[Span]:
        """Stop the worker's recording, and return the recorded spans."""
        self.send(AskTrace())
        return [span for told in self._parts(TraceTold) for span in told.spans]

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Observer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def observe_all(place: RuntimePaths) -> Iterator[Observer]:
    """Yield an observer of every running worker, the foreground one first; close each.

    Connecting to a background worker would start one, so it is searched for among the processes,
    by its name: a supervisor has other children, and one worker may serve both sockets.
    """
    foreground = Observer(place, Role.FOREGROUND)
    yield foreground
    if _has_background(foreground.pid):
        yield Observer(place, Role.BACKGROUND)


def _has_background(foreground: int) -> bool:
    supervisor = parent_of(foreground)
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            # any process's name: the kernel cuts it, also within a character
            name = (entry / "comm").read_text(errors="replace").strip()
            is_background = name == WORKER_NAMES[Role.BACKGROUND]
            if is_background and parent_of(int(entry.name)) == supervisor:
                return True
    return False
