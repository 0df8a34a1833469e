"""A stub that can start no thread, or open nothing more: requests are refused, none waits forever,
and all goes on once there is room."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from brisk.errors import UnavailableError
from brisk.protocol.runtime_paths import Role, RuntimePaths
from brisk.stub.runtime_client.client import RuntimeClient
from support.open_files import no_thread_left
from support.runtime.runtime_process import (
    describe,
    infer,
    kill,
    opened,
    submit,
    worker_of,
)
from support.runtime.two_workers import background
from support.waiting import wait_until

ROWS = np.arange(8, dtype=np.float32).reshape(2, 4)


def error_of(connection: RuntimeClient, job_class: str = "normal") -> str:
    """Send a request, which is refused for want of something; return why."""
    error = submit(connection, ROWS, job_class)[1].wait().error
    assert isinstance(error, UnavailableError)
    return str(error)


def is_served(connection: RuntimeClient, job_class: str) -> bool:
    answer = submit(connection, ROWS, job_class)[1].wait()
    return answer.error is None and np.array_equal(answer.output(), -ROWS)


@contextmanager
def one_descriptor_left(number: int) -> Iterator[None]:
    """Let this process open nothing but what gets descriptor ``number``, while the block lasts."""
    gc.collect()  # no other descriptor is closed meanwhile
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as holes:
        while (hole := os.dup(0)) < number:
            holes.callback(os.close, hole)
        os.close(hole)
        resource.setrlimit(resource.RLIMIT_NOFILE, (number + 1, limits[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_first_request_to_the_other_worker_is_refused_without_a_thread_and_the_next_are_not(
    connection: RuntimeClient,
) -> None:
    with no_thread_left():
        words = "model 'quick' has no connection to the background worker: can't start new thread"
        assert error_of(connection, "besteffort") == words
        held = connection.statistics()
        assert error_of(connection, "besteffort") == words
        assert connection.statistics() == held, "it keeps no memory of those"
    assert is_served(connection, "besteffort")


def test_a_new_background_worker_is_reached_once_there_is_a_thread(
    shared_place: RuntimePaths, connection: RuntimeClient
) -> None:
    assert is_served(connection, "besteffort")
    worker = background(shared_place)
    with no_thread_left():
        kill(worker)
        assert "the runtime cannot be restarted: can't start" in error_of(connection, "besteffort")
    wait_until(lambda: is_served(connection, "besteffort"), "an answer of the new worker")


def test_a_new_worker_is_reached_once_there_is_a_descriptor_to_watch_it_with(
    place: RuntimePaths, quick: Path
) -> None:
    with opened(place, describe(quick)) as connection:
        infer(connection, ROWS)
        worker = worker_of(place)
        reader = connection._connections[Role.FOREGROUND].reader
        assert reader._sleeping is not None
        with one_descriptor_left(min(reader._descriptor, reader._sleeping.fileno())):
            kill(worker)
            assert "Too many open files" in error_of(connection)
        wait_until(lambda: is_served(connection, "normal"), "an answer of the new worker")
